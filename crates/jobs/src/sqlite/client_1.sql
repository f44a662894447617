-- The number is the order of insertion. The body is null when it is large and stands in its own table.
CREATE TABLE job (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    submitted REAL NOT NULL,
    deadline REAL NOT NULL,
    finished REAL,
    timeout INTEGER NOT NULL,
    service TEXT NOT NULL,
    task TEXT NOT NULL,
    target TEXT NOT NULL,
    dispatched TEXT NOT NULL,
    started TEXT NOT NULL,
    completed TEXT NOT NULL,
    errors TEXT NOT NULL,
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
    worker TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, worker, part)
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    job INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, sequence)
) STRICT, WITHOUT ROWID;
