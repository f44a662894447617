-- A large result goes into the database in parts, each in a transaction of its own, so that others go between them. A result in this
-- table is one whose row in `result` says so; `bytes` is how long it is. The data are the last column of a table with a number,
-- because SQLite reads a whole row to compare it where the key is a part of it.
ALTER TABLE result ADD COLUMN value INTEGER;
ALTER TABLE result ADD COLUMN bytes INTEGER;
CREATE TABLE part (
    number INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    value INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX part_of ON part (job, value, number);
-- Values whose end is not there yet. After a crash their parts belong to nobody.
CREATE TABLE storing (
    job INTEGER NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (job, value)
) STRICT, WITHOUT ROWID;
