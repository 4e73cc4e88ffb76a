-- The given events that are not there as given, and in which columns. A tombstone stands for an event whose id is
-- there at a lower seq of the same conversation. JSON is compared by value.
SELECT
    given.conversation_id AS "conversation_id!",
    given.seq AS "seq!",
    there.seq IS NULL AS "missing!",
    CASE WHEN there.kind = 'tombstone' THEN '{kind}' ELSE array_remove(ARRAY[
        CASE WHEN there.position IS DISTINCT FROM given.position THEN 'position' END,
        CASE WHEN there.partition IS DISTINCT FROM $1 THEN 'partition' END,
        CASE WHEN there.tenant_id IS DISTINCT FROM given.tenant_id THEN 'tenant_id' END,
        CASE WHEN there.id IS DISTINCT FROM given.id THEN 'id' END,
        CASE WHEN there.fingerprint IS DISTINCT FROM given.fingerprint THEN 'fingerprint' END,
        CASE WHEN there.at IS DISTINCT FROM given.at THEN 'at' END,
        CASE WHEN there.size IS DISTINCT FROM given.size THEN 'size' END,
        CASE WHEN there.kind IS DISTINCT FROM given.kind THEN 'kind' END,
        CASE WHEN there.client_id IS DISTINCT FROM given.client_id THEN 'client_id' END,
        CASE WHEN there.sender_id IS DISTINCT FROM given.sender_id THEN 'sender_id' END,
        CASE WHEN there.sender_role IS DISTINCT FROM given.sender_role THEN 'sender_role' END,
        CASE WHEN there.sender_name IS DISTINCT FROM given.sender_name THEN 'sender_name' END,
        CASE WHEN there.text IS DISTINCT FROM given.text THEN 'text' END,
        CASE WHEN there.data IS DISTINCT FROM given.data::jsonb THEN 'data' END,
        CASE WHEN there.metadata IS DISTINCT FROM given.metadata::jsonb THEN 'metadata' END,
        CASE WHEN there.trace IS DISTINCT FROM given.trace THEN 'trace' END
    ], NULL) END AS "columns!"
FROM UNNEST(
    $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::integer[],
    $8::uuid[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[],
    $15::text[], $16::text[], $17::text[], $18::text[]
) AS given (
    conversation_id, seq, position, fingerprint, at, size, tenant_id, id,
    kind, client_id, sender_id, sender_role, sender_name, text, data, metadata, trace
)
LEFT JOIN messages AS there
    ON there.conversation_id = given.conversation_id AND there.seq = given.seq
LEFT JOIN messages AS first
    ON there.kind = 'tombstone' AND first.id = there.duplicate_of
    AND first.conversation_id = given.conversation_id AND first.seq < given.seq
WHERE
    CASE WHEN there.kind = 'tombstone'
    THEN
        first.id IS DISTINCT FROM given.id
        OR there.position IS DISTINCT FROM given.position
    ELSE
        (
            there.position, there.partition, there.tenant_id, there.id, there.fingerprint, there.at,
            there.size, there.kind, there.client_id, there.sender_id, there.sender_role,
            there.sender_name, there.text, there.data, there.metadata, there.trace
        ) IS DISTINCT FROM (
            given.position, $1, given.tenant_id, given.id, given.fingerprint, given.at,
            given.size, given.kind, given.client_id, given.sender_id, given.sender_role,
            given.sender_name, given.text, given.data::jsonb, given.metadata::jsonb, given.trace
        )
    END
