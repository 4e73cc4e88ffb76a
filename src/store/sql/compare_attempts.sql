-- Outcomes that have no attempt as they say, or a delivery that does not count them.
SELECT DISTINCT new.id AS "id!", new.attempt AS "attempt!"
FROM UNNEST($1::uuid[], $2::timestamptz[], $3::integer[], $4::integer[], $5::text[], $6::text[])
    AS new (id, at, attempt, status, state, reason)
LEFT JOIN attempts AS old
    ON old.delivery_id = new.id AND old.began_at = new.at AND old.attempt = new.attempt
LEFT JOIN deliveries AS row ON row.id = new.id
WHERE (old.status, old.state, old.reason) IS DISTINCT FROM (new.status, new.state, new.reason)
    OR row.id IS NULL
    OR row.attempts < new.attempt
