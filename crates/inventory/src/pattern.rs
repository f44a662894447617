//! Shell patterns for worker names, as Python's `fnmatchcase` reads them.

/// Whether `name` matches `pattern`: `*` any run of characters, `?` one character, `[abc]`, `[a-z]` and `[!a-z]` one of
/// or none of a set; everything else stands for itself. Case counts, `/` and `.` are ordinary.
///
/// The cost is at most the product of the two lengths.
pub fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut in_name) = (0, 0);
    // Where the last star was, and up to where it has swallowed the name.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, in_name));
            at += 1;
            continue;
        }
        if let Some(length) = matches_one(&pattern[at..], name[in_name]) {
            at += length;
            in_name += 1;
            continue;
        }
        let Some((star_at, swallowed)) = star else {
            return false;
        };
        star = Some((star_at, swallowed + 1));
        at = star_at + 1;
        in_name = swallowed + 1;
    }
    pattern[at..].iter().all(|character| *character == '*')
}

/// The length of the first element of `pattern`, no star, if it stands for `character`.
fn matches_one(pattern: &[char], character: char) -> Option<usize> {
    let (fits, length) = match pattern.first()? {
        '?' => (true, 1),
        '[' => match set_end(pattern) {
            Some(end) => (in_set(&pattern[1..end], character), end + 1),
            None => (character == '[', 1),
        },
        literal => (*literal == character, 1),
    };
    fits.then_some(length)
}

/// Index of the `]` that ends the set; one that comes first, or right after `!`, is a member.
fn set_end(pattern: &[char]) -> Option<usize> {
    let members = if pattern.get(1) == Some(&'!') { 2 } else { 1 };
    (members + 1..pattern.len()).find(|at| pattern[*at] == ']')
}

fn in_set(set: &[char], character: char) -> bool {
    let (negated, mut members) = match set {
        ['!', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut found = false;
    while let [first, rest @ ..] = members {
        members = match rest {
            // A range from a later to an earlier character is empty.
            ['-', last, rest @ ..] => {
                found |= (*first..=*last).contains(&character);
                rest
            }
            _ => {
                found |= *first == character;
                rest
            }
        };
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_answer_as_fnmatchcase() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("w-*", "w-1", true),
            ("w-*", "W-1", false),
            ("w-?", "w-12", false),
            ("w-[12]", "w-2", true),
            ("w-[!12]", "w-2", false),
            ("w-[0-9]*", "w-3x", true),
            ("[a-c-e]", "-", true),
            ("[a-c-e]", "d", false),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[c-a]", "b", false),
            ("[!c-a]", "b", true),
            ("[-a]", "-", true),
            ("[a-]", "-", true),
            ("[^a]", "^", true),
            ("[a", "[a", true),
            ("[!", "[!", true),
            ("[]", "[]", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("a/*", "a/b/c", true),
            ("é?", "é日", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// The definition, without any thought of cost.
    fn naive(pattern: &[char], name: &[char]) -> bool {
        match pattern {
            [] => name.is_empty(),
            ['*', rest @ ..] => (0..=name.len()).any(|swallowed| naive(rest, &name[swallowed..])),
            _ => match name {
                [] => false,
                [first, rest @ ..] => {
                    matches_one(pattern, *first).is_some_and(|length| naive(&pattern[length..], rest))
                }
            },
        }
    }

    proptest! {
        #[test]
        fn matching_equals_its_definition(pattern in "[ab*?\\[\\]!-]{0,10}", name in "[ab\\[\\]!-]{0,8}") {
            let split = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &name), naive(&split(&pattern), &split(&name)));
        }

        #[test]
        fn any_text_is_a_pattern(pattern in "\\PC{0,40}", name in "\\PC{0,40}") {
            matches(&pattern, &name);
        }
    }
}
