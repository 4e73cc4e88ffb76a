-- A head grows only. The first event of a conversation, its opening, makes the row; later ones move its end.
INSERT INTO conversations (
    id, tenant_id, head_seq, position, opened_at, closed_at, partition, status, metadata, channel_ids
)
SELECT
    id, tenant_id, head_seq, position, opened_at, closed_at, $1, status, metadata::jsonb, channels::uuid[]
FROM UNNEST(
    $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::timestamptz[],
    $8::text[], $9::text[], $10::text[]
) AS given (id, tenant_id, head_seq, position, opened_at, closed_at, status, metadata, channels)
ON CONFLICT (id) DO UPDATE SET
    head_seq = EXCLUDED.head_seq,
    position = EXCLUDED.position,
    closed_at = EXCLUDED.closed_at,
    status = EXCLUDED.status
WHERE conversations.head_seq < EXCLUDED.head_seq
