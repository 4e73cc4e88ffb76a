-- Each state has its own stretch of the index, in the order of ids; the stretches are merged.
SELECT
    one.id, one.tenant_id, one.channel_id, one.conversation_id, one.message_id, one.seq, one.first_attempt_at,
    one.last_attempt_at, one.next_attempt_at, one.attempts, one.status, one.state, one.reason
FROM UNNEST($2::text[]) AS wanted (state)
CROSS JOIN LATERAL (
    SELECT
        id, tenant_id, channel_id, conversation_id, message_id, seq, first_attempt_at, last_attempt_at,
        next_attempt_at, attempts, status, deliveries.state, reason
    FROM deliveries
    WHERE channel_id = $1 AND deliveries.state = wanted.state AND id > $3
        AND ($4::timestamptz IS NULL OR last_attempt_at >= $4)
        AND ($5::timestamptz IS NULL OR last_attempt_at < $5)
    ORDER BY id LIMIT $6
) AS one
ORDER BY one.id LIMIT $6
