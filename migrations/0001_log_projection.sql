-- The projection of the log. Postgres is a function of it: dropping these tables and projecting again gives the
-- same rows. No foreign keys: each table is written in the order of the log, and the log has checked already.
-- Names are unqualified, so that search_path says which schema this is; a rebuild fills a second one.

-- One row a conversation: its head. Updated by nearly every batch, never by an indexed column, so the spare room
-- of a page keeps those updates within it (heap-only tuples).
CREATE TABLE conversations (
    id          uuid        NOT NULL PRIMARY KEY,
    tenant_id   uuid        NOT NULL,
    head_seq    bigint      NOT NULL CHECK (head_seq >= 1),
    position    bigint      NOT NULL,
    opened_at   timestamptz NOT NULL,
    closed_at   timestamptz,
    partition   smallint    NOT NULL,
    status      text        NOT NULL CHECK (status IN ('open', 'closed')),
    metadata    jsonb,
    channel_ids uuid[]      NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- One row a seq, in insert order, never updated. Columns of fixed width come first: no padding.
-- kind is the client's type, or conversation.opened, .closed, .reopened, or tombstone: a seq without content.
-- A tombstone whose content has another seq has no id (an id is unique) and says whose repeat it is.
-- position is the stream sequence of the record; size is the bound of its content in bytes, which bounds pages.
CREATE TABLE messages (
    conversation_id uuid        NOT NULL,
    seq             bigint      NOT NULL CHECK (seq >= 1),
    position        bigint      NOT NULL,
    fingerprint     bigint      NOT NULL,
    at              timestamptz NOT NULL,
    size            integer     NOT NULL,
    partition       smallint    NOT NULL,
    tenant_id       uuid        NOT NULL,
    id              uuid,
    duplicate_of    uuid,
    kind            text        NOT NULL,
    client_id       text,
    sender_id       text,
    sender_role     text,
    sender_name     text,
    text            text,
    data            jsonb,
    metadata        jsonb,
    trace           text,
    PRIMARY KEY (conversation_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE UNIQUE INDEX messages_id ON messages (id);

-- Per partition, the stream sequence up to which the tables above are written. A page of it holds one row and the
-- many dead versions of it.
CREATE TABLE checkpoints (
    partition smallint NOT NULL PRIMARY KEY,
    position  bigint   NOT NULL CHECK (position >= 0),
    epoch     text     NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Events that Postgres refused. event is the event as the log has it, in MessagePack.
CREATE TABLE quarantine (
    partition       smallint    NOT NULL,
    position        bigint      NOT NULL,
    place           integer     NOT NULL,
    conversation_id uuid        NOT NULL,
    seq             bigint      NOT NULL,
    reason          text        NOT NULL,
    event           bytea       NOT NULL,
    at              timestamptz NOT NULL,
    PRIMARY KEY (partition, position, place)
);
