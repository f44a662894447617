//! inventory.yaml: templates, merging, topology, checked types.
