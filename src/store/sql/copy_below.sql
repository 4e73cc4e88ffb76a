-- Text with names of schemas and two numbers to be filled in: {live}, {fresh}, {partition}, {floor}.
-- Both schemas were made by the same migrations, so their columns are the same.
INSERT INTO {fresh}.messages
SELECT * FROM {live}.messages WHERE partition = {partition} AND position < {floor};

INSERT INTO {fresh}.quarantine
SELECT * FROM {live}.quarantine WHERE partition = {partition} AND position < {floor};

-- Deliveries whose first outcome is forgotten; what the log still has of them is projected on top.
INSERT INTO {fresh}.deliveries
SELECT * FROM {live}.deliveries WHERE partition = {partition} AND first_position < {floor};

INSERT INTO {fresh}.attempts
SELECT * FROM {live}.attempts WHERE partition = {partition} AND position < {floor};

-- The heads as projecting those messages would leave them. Seq 1 is the opening, or its tombstone.
INSERT INTO {fresh}.conversations (
    id, tenant_id, head_seq, position, opened_at, closed_at, partition, status, metadata, channel_ids
)
SELECT
    last.conversation_id, last.tenant_id, last.seq, last.position, COALESCE(first.at, last.at),
    CASE WHEN last.kind = 'conversation.closed' THEN last.at END, last.partition,
    CASE WHEN last.kind = 'conversation.closed' THEN 'closed' ELSE 'open' END,
    first.metadata,
    ARRAY(SELECT channel::uuid FROM jsonb_array_elements_text(first.data -> 'channels') AS list (channel))
FROM (
    SELECT DISTINCT ON (conversation_id) * FROM {fresh}.messages
    WHERE partition = {partition} ORDER BY conversation_id, seq DESC
) AS last
LEFT JOIN {fresh}.messages AS first
    ON first.conversation_id = last.conversation_id AND first.seq = 1;

UPDATE {fresh}.checkpoints SET position = {floor} - 1
WHERE partition = {partition} AND position < {floor} - 1;
