-- The tables of a file store, version 1. A change here needs a new `user_version`.
CREATE TABLE meta (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  boot   TEXT    NOT NULL,  -- the boot id that the places are of
  last   INTEGER NOT NULL,  -- the highest token of all lines whose rows were deleted
  cursor TEXT    NOT NULL   -- the name from which the sweep of idle lines continues
);
CREATE TABLE line (
  name     TEXT    PRIMARY KEY,
  capacity INTEGER NOT NULL,
  last     INTEGER NOT NULL,
  count    INTEGER NOT NULL,
  held     INTEGER NOT NULL,
  front    INTEGER NOT NULL,
  due      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE place (
  name    TEXT    NOT NULL,
  seq     INTEGER NOT NULL,
  id      BLOB    NOT NULL,
  weight  INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  process INTEGER NOT NULL,  -- the number of the owner's liveness lock
  deep    INTEGER NOT NULL,  -- 1 if 16 or more places were before it when it was added
  note    TEXT    NOT NULL,
  PRIMARY KEY (name, seq)
) WITHOUT ROWID;
-- A place that was added when fewer were there stays among the first 16, and is found by searching
-- those; so a short line, as nearly every line is, costs no index.
CREATE INDEX place_id  ON place (id) WHERE deep = 1;
CREATE INDEX place_due ON place (name, expires) WHERE deep = 1;
