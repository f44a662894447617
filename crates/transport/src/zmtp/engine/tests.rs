//! Two engines, each reading what the other says.

use super::*;

const LIMITS: Limits = Limits { bytes_max: 2_000_000, frames_max: 4 };
const ROOM: Room = Room { messages: 1_000, large_bytes: 100_000_000 };

fn ends(encrypted: bool) -> (Engine, Engine) {
    let keys = KeyPair::generate();
    let own = KeyPair::generate();
    let listener = Role::Listener { keys: encrypted.then(|| Arc::new(keys.clone())) };
    let keys = encrypted.then(|| DealerKeys { own, broker: keys.public });
    let connector = Role::Connector { keys, identity: Bytes::from("worker-1") };
    (Engine::new(listener, LIMITS), Engine::new(connector, LIMITS))
}

/// Hands everything that one end has to say to the other, in pieces.
fn carry(from: &mut Engine, to: &mut Engine, piece: usize) -> Result<Vec<Happening>, Broken> {
    let mut happenings = Vec::new();
    while from.has_output() {
        if let Some(sealing) = from.take_sealing() {
            from.sealed(sealing.seal());
        }
        let mut slices = Vec::new();
        from.slices(&mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        from.left(bytes.len());
        for mut input in bytes.chunks(piece) {
            loop {
                match to.receive(&mut input)? {
                    None => break,
                    Some(Happening::Large(opening)) => happenings.extend(to.opened(opening.open())?),
                    Some(Happening::Asks(key)) => {
                        happenings.push(Happening::Asks(key));
                        happenings.extend(to.admit(true).map(Happening::Open));
                    }
                    Some(happening) => happenings.push(happening),
                }
            }
        }
    }
    Ok(happenings)
}

fn shake_hands(listener: &mut Engine, connector: &mut Engine, piece: usize) -> Vec<Happening> {
    let mut happenings = Vec::new();
    for _ in 0..4 {
        happenings.extend(carry(connector, listener, piece).unwrap());
        happenings.extend(carry(listener, connector, piece).unwrap());
    }
    assert!(listener.is_open() && connector.is_open());
    happenings
}

#[test]
fn both_ends_shake_hands_and_exchange_messages_in_pieces_of_any_length() {
    for (encrypted, piece) in [(false, 1), (false, 10_000), (true, 1), (true, 10_000)] {
        let (mut listener, mut connector) = ends(encrypted);
        let happenings = shake_hands(&mut listener, &mut connector, piece);
        let asked = happenings.iter().find_map(|happening| match happening {
            Happening::Asks(key) => Some(key.is_some()),
            _ => None,
        });
        assert_eq!(asked, Some(encrypted));
        let identity = happenings.iter().find_map(|happening| match happening {
            Happening::Open(identity) => Some(identity.clone()),
            _ => None,
        });
        assert_eq!(identity.unwrap(), "worker-1");
        let sizes = [0, 1, 300, 9_000, 600_000, 70_000];
        for (from, to) in [(true, false), (false, true)] {
            let (from, to) = match (from, to) {
                (true, _) => (&mut listener, &mut connector),
                _ => (&mut connector, &mut listener),
            };
            for size in sizes {
                let bytes = Bytes::from(vec![size as u8; size]);
                let message = [bytes.clone(), Bytes::from("x"), bytes];
                assert!(from.send(&message, ROOM));
                let happenings = carry(from, to, piece.max(size / 100)).unwrap();
                let [Happening::Message { frames, truncated: false }] = &happenings[..] else {
                    panic!("one message of {size}")
                };
                assert!(frames[..] == message, "{size}");
            }
        }
    }
}

#[test]
fn a_message_is_cut_off_at_its_bound_and_a_long_one_ends_the_connection() {
    let (mut listener, mut connector) = ends(true);
    shake_hands(&mut listener, &mut connector, 1_000);
    let frames: Vec<Bytes> = (0..9).map(|number| Bytes::from(number.to_string())).collect();
    assert!(connector.send(&frames, ROOM));
    assert!(connector.send(&frames[..4], ROOM));
    let happenings = carry(&mut connector, &mut listener, 100).unwrap();
    let [Happening::Message { frames: cut, truncated: true }, Happening::Message { truncated: false, .. }] =
        &happenings[..]
    else {
        panic!("two messages")
    };
    assert_eq!(cut[..], frames[..4]);
    let long = Bytes::from(vec![0; 1_500_000]);
    assert!(connector.send(&[long.clone(), long], ROOM));
    assert_eq!(carry(&mut connector, &mut listener, 100_000).err(), Some(Broken::TooLong));
}

#[test]
fn a_changed_and_a_repeated_message_end_the_connection() {
    for repeated in [false, true] {
        let (mut listener, mut connector) = ends(true);
        shake_hands(&mut listener, &mut connector, 1_000);
        assert!(connector.send(&[Bytes::from("job")], ROOM));
        let mut slices = Vec::new();
        connector.slices(&mut slices);
        let mut wire = slices[0].to_vec();
        if repeated {
            assert!(matches!(listener.receive(&mut &wire[..]), Ok(Some(Happening::Message { .. }))));
        } else {
            *wire.last_mut().unwrap() ^= 1;
        }
        let expected = if repeated { Broken::Malformed } else { Broken::Box };
        assert_eq!(listener.receive(&mut &wire[..]).err(), Some(expected));
    }
}

#[test]
fn a_ping_within_a_box_is_answered_within_one() {
    for encrypted in [false, true] {
        let (mut listener, mut connector) = ends(encrypted);
        shake_hands(&mut listener, &mut connector, 1_000);
        connector.output.command(b"\x04PING\0\0here", connector.cipher.as_mut());
        let mut slices = Vec::new();
        connector.slices(&mut slices);
        let wire = slices[0].to_vec();
        // The flags of a command differ inside and outside of a box.
        assert_eq!(wire[0], if encrypted { 0 } else { COMMAND });
        assert!(matches!(listener.receive(&mut &wire[..]), Ok(None)));
        connector.left(wire.len());
        let mut slices = Vec::new();
        listener.slices(&mut slices);
        let answer = slices[0].to_vec();
        if let Some(cipher) = &mut connector.cipher {
            let (flags, content) = cipher.open(&answer[2..]).unwrap();
            assert_eq!((flags, &content[..]), (COMMAND, &b"\x04PONGhere"[..]));
        } else {
            assert_eq!(answer, b"\x04\x09\x04PONGhere");
        }
    }
}

#[test]
fn whoever_is_turned_away_is_told_and_heard_no_more() {
    for encrypted in [false, true] {
        let (mut listener, mut connector) = ends(encrypted);
        let mut broken = None;
        for _ in 0..4 {
            while connector.has_output() {
                let mut slices = Vec::new();
                connector.slices(&mut slices);
                let bytes = slices[0].to_vec();
                connector.left(bytes.len());
                if let Some(Happening::Asks(_)) = listener.receive(&mut &bytes[..]).unwrap() {
                    assert_eq!(listener.admit(false), None);
                }
            }
            broken = broken.or(carry(&mut listener, &mut connector, 1_000).err());
        }
        assert_eq!(broken, Some(Broken::Denied));
        assert!(listener.is_denied());
        let mut more: &[u8] = b"whatever";
        assert!(matches!(listener.receive(&mut more), Ok(None)));
        assert!(more.is_empty());
    }
}

#[test]
fn a_client_with_the_wrong_key_of_the_server_gets_nowhere() {
    let (mut listener, _) = ends(true);
    let (_, mut connector) = ends(true);
    assert_eq!(carry(&mut connector, &mut listener, 1_000).err(), None);
    assert_eq!(carry(&mut listener, &mut connector, 1_000).err(), None);
    assert!(connector.is_encrypting());
    assert_eq!(carry(&mut connector, &mut listener, 1_000).err(), Some(Broken::Box));
}

#[test]
fn room_is_counted_in_messages_and_in_bytes_of_large_frames() {
    let (mut listener, mut connector) = ends(true);
    shake_hands(&mut listener, &mut connector, 1_000);
    let room = Room { messages: 3, large_bytes: 30_000 };
    let large = [Bytes::from(vec![0; 20_000])];
    let very_large = [Bytes::from(vec![0; 100_000])];
    assert!(connector.send(&very_large, room), "nothing waits");
    assert!(!connector.send(&large, room));
    assert!(connector.send(&[Bytes::from("small")], room), "small ones cost little");
    assert!(connector.send(&[Bytes::from("small")], room));
    assert!(!connector.send(&[Bytes::from("small")], room));
    carry(&mut connector, &mut listener, 1_000).unwrap();
    assert!(connector.send(&large, room));
}
