-- The number of the last record of the journal that went into this database.
CREATE TABLE noted (
    number INTEGER NOT NULL
) STRICT;
INSERT INTO noted (number) VALUES (0);
