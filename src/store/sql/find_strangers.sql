-- The first of the given events whose seq is missing or belongs to another event, if there is one.
SELECT given.conversation_id AS "conversation_id!", given.seq AS "seq!"
FROM UNNEST($1::uuid[], $2::bigint[], $3::uuid[]) AS given (conversation_id, seq, id)
LEFT JOIN messages AS there
    ON there.conversation_id = given.conversation_id AND there.seq = given.seq
WHERE there.seq IS NULL
    OR COALESCE(there.id, there.duplicate_of) IS DISTINCT FROM given.id
LIMIT 1
