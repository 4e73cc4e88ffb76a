-- What became of deliveries. A function of the log too: each row is folded from the outcomes that records carry.

-- One row a delivery that was attempted, with what its last attempt left. first_position and position are the stream
-- sequences of the records with its first and its last outcome.
CREATE TABLE deliveries (
    id               uuid        NOT NULL PRIMARY KEY,
    tenant_id        uuid        NOT NULL,
    channel_id       uuid        NOT NULL,
    conversation_id  uuid        NOT NULL,
    message_id       uuid        NOT NULL,
    seq              bigint      NOT NULL,
    first_position   bigint      NOT NULL,
    position         bigint      NOT NULL,
    first_attempt_at timestamptz NOT NULL,
    last_attempt_at  timestamptz NOT NULL,
    next_attempt_at  timestamptz,
    attempts         integer     NOT NULL CHECK (attempts >= 1),
    status           integer,
    partition        smallint    NOT NULL,
    state            text        NOT NULL CHECK (state IN ('delivered', 'retrying', 'failed')),
    reason           text
) WITH (fillfactor = 80);

CREATE INDEX deliveries_channel ON deliveries (channel_id, id);
CREATE INDEX deliveries_message ON deliveries (message_id);

-- One row an attempt, in insert order, never updated. A crash may repeat an attempt under its number, at another time.
CREATE TABLE attempts (
    delivery_id uuid        NOT NULL,
    began_at    timestamptz NOT NULL,
    position    bigint      NOT NULL,
    attempt     integer     NOT NULL,
    took_ms     integer     NOT NULL,
    status      integer,
    partition   smallint    NOT NULL,
    state       text        NOT NULL,
    reason      text,
    answer      text,
    PRIMARY KEY (delivery_id, began_at, attempt)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
