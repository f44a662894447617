-- The number is the order of insertion. The body is null when it is large and stands in its own table.
-- `submitted` is the time of receipt, under the name that the client's table has for it.
CREATE TABLE job (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    submitted REAL NOT NULL,
    deadline REAL NOT NULL,
    started REAL,
    finished REAL,
    attempts INTEGER NOT NULL,
    timeout INTEGER NOT NULL,
    client TEXT NOT NULL,
    task TEXT NOT NULL,
    body BLOB
) STRICT;
-- For recovery. It holds unfinished jobs only, so it stays small and an end costs no second page.
CREATE INDEX job_unfinished ON job (submitted, id) WHERE finished IS NULL;
CREATE TABLE body (
    job INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, part)
) STRICT, WITHOUT ROWID;
CREATE TABLE result (
    job INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, part)
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    job INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, sequence)
) STRICT, WITHOUT ROWID;
