-- For each event whose seq is not there because its id is there at a lower seq: a row that says so, for a seq never
-- vanishes. It keeps what the event cost and when it came, and nothing of its content.
INSERT INTO messages (
    conversation_id, seq, position, fingerprint, at, size, partition, tenant_id, duplicate_of, kind
)
SELECT
    given.conversation_id, given.seq, given.position, given.fingerprint, given.at, 0, $1,
    given.tenant_id, given.id, 'tombstone'
FROM UNNEST(
    $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::uuid[], $8::uuid[]
) AS given (conversation_id, seq, position, fingerprint, at, tenant_id, id)
JOIN messages AS first ON first.id = given.id
WHERE first.conversation_id = given.conversation_id AND first.seq < given.seq
ON CONFLICT DO NOTHING
