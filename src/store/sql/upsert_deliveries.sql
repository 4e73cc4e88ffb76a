-- A delivery that was delivered stays so, whatever a repeated attempt says; else the highest attempt counts.
INSERT INTO deliveries AS kept (
    id, tenant_id, channel_id, conversation_id, message_id, seq, first_position, position,
    first_attempt_at, last_attempt_at, next_attempt_at, attempts, status, partition, state, reason
)
SELECT id, tenant, channel, conversation, message, seq, position, position, at, at, next, attempt, status, $1, state, reason
FROM UNNEST(
    $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], $8::bigint[],
    $9::timestamptz[], $10::timestamptz[], $11::integer[], $12::integer[], $13::text[], $14::text[]
) AS new (id, tenant, channel, conversation, message, seq, position, at, next, attempt, status, state, reason)
ON CONFLICT (id) DO UPDATE SET
    attempts = GREATEST(kept.attempts, EXCLUDED.attempts),
    last_attempt_at = GREATEST(kept.last_attempt_at, EXCLUDED.last_attempt_at),
    position = GREATEST(kept.position, EXCLUDED.position),
    state = EXCLUDED.state,
    status = EXCLUDED.status,
    reason = EXCLUDED.reason,
    next_attempt_at = EXCLUDED.next_attempt_at
WHERE kept.state <> 'delivered'
    AND (EXCLUDED.state = 'delivered' OR EXCLUDED.attempts >= kept.attempts)
