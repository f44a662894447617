//! A way to the broker on which bytes can be held up.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest that anybody waits at a gate.
const PATIENCE: Duration = Duration::from_secs(30);

/// In which direction bytes are held up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Held {
    ToBroker,
    FromBroker,
}

/// A relay for one connection. After so many bytes in one direction it passes nothing more that way until it is opened.
pub struct Detour {
    endpoint: String,
    gate: Arc<Gate>,
}

impl Detour {
    pub fn new(broker: &str, held: Held, bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("tcp://{}", listener.local_addr().expect("an address"));
        let broker = broker.strip_prefix("tcp://").expect("an endpoint").to_owned();
        let gate = Arc::new(Gate::default());
        let of_relay = Arc::clone(&gate);
        thread::spawn(move || {
            let near = listener.accept().expect("a connection").0;
            let far = TcpStream::connect(broker).expect("the broker");
            let gate_of = |direction| (direction == held).then(|| (Arc::clone(&of_relay), bytes));
            let (from, to) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
            let there = gate_of(Held::ToBroker);
            thread::spawn(move || pass(from, to, there));
            pass(far, near, gate_of(Held::FromBroker));
        });
        Self { endpoint, gate }
    }

    /// Where it takes the connection.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits until bytes are held up.
    pub async fn wait_until_it_holds(&self) {
        let gate = Arc::clone(&self.gate);
        let waited = tokio::task::spawn_blocking(move || gate.wait_for(|state| state.holds));
        assert!(waited.await.expect("no panic"), "nothing is held up");
    }

    /// Lets everything pass.
    pub fn open(&self) {
        self.gate.change(|state| state.open = true);
    }
}

#[derive(Default)]
struct State {
    holds: bool,
    open: bool,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    news: Condvar,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.notify_all();
    }

    /// `false`: not in time.
    fn wait_for(&self, what: impl Fn(&State) -> bool) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.news.wait_timeout_while(state, PATIENCE, |state| !what(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Until one of the two closes.
fn pass(mut from: TcpStream, mut to: TcpStream, gate: Option<(Arc<Gate>, usize)>) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        passed += count;
        if let Some((gate, bytes)) = &gate
            && passed > *bytes
        {
            gate.change(|state| state.holds = true);
            if !gate.wait_for(|state| state.open) {
                return;
            }
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
