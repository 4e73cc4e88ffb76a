-- What deliveries/fold.rs does within a batch, over batches: the first success counts, whatever a repeated attempt says;
-- without one, the highest attempt, and of its repeats the latest.
INSERT INTO deliveries AS kept (
    id, tenant_id, channel_id, conversation_id, message_id, seq, first_position, position,
    first_attempt_at, last_attempt_at, next_attempt_at, attempts, status, partition, state, reason
)
SELECT
    id, tenant, channel, conversation, message, seq, first_position, position,
    first_at, last_at, next_at, attempts, status, $1, state, reason
FROM UNNEST(
    $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], $8::bigint[], $9::bigint[],
    $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::integer[], $14::integer[], $15::text[],
    $16::text[]
) AS new (
    id, tenant, channel, conversation, message, seq, first_position, position,
    first_at, last_at, next_at, attempts, status, state, reason
)
ON CONFLICT (id) DO UPDATE SET
    first_position = LEAST(kept.first_position, EXCLUDED.first_position),
    position = GREATEST(kept.position, EXCLUDED.position),
    first_attempt_at = LEAST(kept.first_attempt_at, EXCLUDED.first_attempt_at),
    attempts = GREATEST(kept.attempts, EXCLUDED.attempts),
    (last_attempt_at, next_attempt_at, status, state, reason) = (
        SELECT last_at, next_at, either.status, either.state, either.reason
        FROM (VALUES
            (kept.attempts, kept.last_attempt_at, kept.next_attempt_at, kept.status, kept.state, kept.reason),
            (
                EXCLUDED.attempts, EXCLUDED.last_attempt_at, EXCLUDED.next_attempt_at, EXCLUDED.status,
                EXCLUDED.state, EXCLUDED.reason
            )
        ) AS either (attempts, last_at, next_at, status, state, reason)
        ORDER BY
            either.state = 'delivered' DESC, CASE WHEN either.state = 'delivered' THEN last_at END,
            either.attempts DESC, last_at DESC
        LIMIT 1
    )
