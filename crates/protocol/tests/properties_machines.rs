//! Whatever happens to a machine, in whatever order, it does not panic and keeps its promises.

mod machines;

use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use machines::broker::{self, BrokerOperation};
use machines::client::{self, ClientOperation};
use machines::worker::{self, WorkerOperation};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes for one list of operations: some hundred of them.
const BYTES_MAX: usize = 4096;

/// Any list of operations, made as the fuzz targets make it.
fn operations<Operation: for<'a> Arbitrary<'a> + Debug>() -> impl Strategy<Value = Vec<Operation>> {
    vec(any::<u8>(), 0..BYTES_MAX)
        .prop_map(|bytes| Vec::arbitrary_take_rest(Unstructured::new(&bytes)).unwrap_or_default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_broker_keeps_its_promises(operations in operations::<BrokerOperation>()) {
        broker::run(&operations);
    }

    #[test]
    fn the_worker_keeps_its_promises(operations in operations::<WorkerOperation>()) {
        worker::run(&operations);
    }

    #[test]
    fn the_client_keeps_its_promises(operations in operations::<ClientOperation>()) {
        client::run(&operations);
    }
}
