-- The given heads that are not there as given, and in which columns. A head beyond the given one is newer, not
-- different. What an opening says is compared where the opening is given, whatever came after it.
SELECT
    given.id AS "id!",
    given.head_seq AS "head_seq!",
    there.id IS NULL AS "missing!",
    array_remove(ARRAY[
        CASE WHEN there.head_seq < given.head_seq THEN 'head_seq' END,
        CASE WHEN there.head_seq <= given.head_seq AND there.tenant_id IS DISTINCT FROM given.tenant_id THEN 'tenant_id' END,
        CASE WHEN there.partition IS DISTINCT FROM $1 THEN 'partition' END,
        CASE WHEN there.head_seq <= given.head_seq AND there.position IS DISTINCT FROM given.position THEN 'position' END,
        CASE WHEN there.head_seq <= given.head_seq AND there.status IS DISTINCT FROM given.status THEN 'status' END,
        CASE WHEN there.head_seq <= given.head_seq AND there.closed_at IS DISTINCT FROM given.closed_at THEN 'closed_at' END,
        CASE WHEN given.has_opening AND there.opened_at IS DISTINCT FROM given.opened_at THEN 'opened_at' END,
        CASE WHEN given.has_opening AND there.metadata IS DISTINCT FROM given.metadata::jsonb THEN 'metadata' END,
        CASE WHEN given.has_opening AND there.channel_ids IS DISTINCT FROM given.channels::uuid[] THEN 'channel_ids' END
    ], NULL) AS "columns!"
FROM UNNEST(
    $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::timestamptz[],
    $8::text[], $9::text[], $10::text[], $11::boolean[]
) AS given (
    id, tenant_id, head_seq, position, opened_at, closed_at, status, metadata, channels, has_opening
)
LEFT JOIN conversations AS there ON there.id = given.id
WHERE there.id IS NULL
    OR there.head_seq < given.head_seq
    OR there.head_seq = given.head_seq
    AND (there.tenant_id, there.partition, there.position, there.status, there.closed_at)
    IS DISTINCT FROM (given.tenant_id, $1, given.position, given.status, given.closed_at)
    OR given.has_opening
    AND (there.opened_at, there.metadata, there.channel_ids)
    IS DISTINCT FROM (given.opened_at, given.metadata::jsonb, given.channels::uuid[])
