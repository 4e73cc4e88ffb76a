-- A channel's deliveries of each state, in the order of their ids: few that failed among many that came through are
-- found without reading those. A list of all states merges the three stretches, so this index replaces the other.
CREATE INDEX deliveries_channel_state ON deliveries (channel_id, state, id);

DROP INDEX deliveries_channel;
