//! What the author of a service sees: services, tasks, their context and their results.
