-- The number of the last record of the journal that went into this database, and a number by which the journal is known to be
-- this database's: that of another one, which was deleted or set aside, counts for nothing.
CREATE TABLE noted (
    number INTEGER NOT NULL,
    seed INTEGER NOT NULL
) STRICT;
INSERT INTO noted (number, seed) VALUES (0, random());
