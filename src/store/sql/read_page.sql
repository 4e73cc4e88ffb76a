-- A page of a conversation, its head and its partition's checkpoint, as of one moment: a statement has one snapshot.
-- One row a message; without messages, one row with the head alone. The branch that $5 does not choose is not run.
-- The page ends with the message that reaches $6 bytes.
SELECT
    COALESCE(checkpoints.position, 0) AS "checkpoint!",
    conversations.tenant_id AS "head_tenant?",
    conversations.head_seq AS "head_seq?",
    conversations.status AS "head_status?",
    conversations.opened_at AS "head_opened_at?",
    conversations.position AS "head_position?",
    messages.seq AS "seq?",
    messages.position AS "position?",
    messages.fingerprint AS "fingerprint?",
    messages.at AS "at?",
    messages.id AS "id?",
    messages.duplicate_of AS "duplicate_of?",
    messages.kind AS "kind?",
    messages.client_id AS "client_id?",
    messages.sender_id AS "sender_id?",
    messages.sender_role AS "sender_role?",
    messages.sender_name AS "sender_name?",
    messages.text AS "text?",
    messages.data::text AS "data?",
    messages.metadata::text AS "metadata?",
    messages.trace AS "trace?",
    messages.tenant_id AS "tenant_id?"
FROM (SELECT 1) AS always
LEFT JOIN checkpoints ON checkpoints.partition = $1
LEFT JOIN conversations ON conversations.id = $2
LEFT JOIN LATERAL (
    SELECT chosen.*, SUM(chosen.size) OVER (ORDER BY chosen.rank) - chosen.size AS bytes_before
    FROM (
        (
            SELECT later.*, later.seq AS rank FROM messages AS later
            WHERE $5 AND later.conversation_id = $2 AND later.seq > $3
            ORDER BY later.seq LIMIT $4
        )
        UNION ALL
        (
            SELECT earlier.*, -earlier.seq AS rank FROM messages AS earlier
            WHERE NOT $5 AND earlier.conversation_id = $2 AND earlier.seq < $3
            ORDER BY earlier.seq DESC LIMIT $4
        )
    ) AS chosen
) AS messages ON messages.bytes_before < $6
ORDER BY messages.rank
