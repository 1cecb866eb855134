-- The rows that the scheme row locks, by an open transaction. tables.sql says where their holders
-- are recorded.
CREATE TABLE IF NOT EXISTS holdline_row (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
