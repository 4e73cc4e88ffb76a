-- One row an event, in the order given. A row whose seq or id is there already is left out; the count tells.
INSERT INTO messages (
    conversation_id, seq, position, fingerprint, at, size, partition, tenant_id, id,
    kind, client_id, sender_id, sender_role, sender_name, text, data, metadata, trace
)
SELECT
    conversation_id, seq, position, fingerprint, at, size, $1, tenant_id, id,
    kind, client_id, sender_id, sender_role, sender_name, text, data::jsonb, metadata::jsonb, trace
FROM UNNEST(
    $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::integer[],
    $8::uuid[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[],
    $15::text[], $16::text[], $17::text[], $18::text[]
) AS given (
    conversation_id, seq, position, fingerprint, at, size, tenant_id, id,
    kind, client_id, sender_id, sender_role, sender_name, text, data, metadata, trace
)
ON CONFLICT DO NOTHING
