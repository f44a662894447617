//! The owner loops of broker, worker and client, and their handles.
