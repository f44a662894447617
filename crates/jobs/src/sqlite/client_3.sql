-- For jobs whose deadline passes while they wait. As the other index it holds unfinished jobs only.
CREATE INDEX job_late ON job (deadline) WHERE finished IS NULL;
