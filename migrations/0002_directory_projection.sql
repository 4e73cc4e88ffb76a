-- The projection of the directory, for people and reports: no request reads it.
-- revision is the directory's own, so that a late writer does not undo a newer one.

CREATE TABLE tenants (
    id       uuid   NOT NULL PRIMARY KEY,
    name     text   NOT NULL,
    tier     text   NOT NULL,
    status   text   NOT NULL,
    config   jsonb  NOT NULL,
    revision bigint NOT NULL
);

CREATE TABLE channels (
    id        uuid   NOT NULL PRIMARY KEY,
    tenant_id uuid   NOT NULL,
    name      text   NOT NULL,
    status    text   NOT NULL,
    config    jsonb  NOT NULL,
    revision  bigint NOT NULL
);
