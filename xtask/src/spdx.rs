//! Licence expressions of SPDX, as far as manifests use them: identifiers, AND, OR, WITH and parentheses.

use crate::Failure;

/// Whether an expression can be met with licences that `accepted` accepts. An exception is part of the name:
/// `Apache-2.0 WITH LLVM-exception`.
pub fn satisfied(expression: &str, accepted: &dyn Fn(&str) -> bool) -> Result<bool, Failure> {
    // Old manifests separate alternatives with a slash.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, accepted };
    let met = parser.any().ok_or_else(|| format!("cannot read the licence expression {expression:?}"))?;
    if parser.words.is_empty() { Ok(met) } else { Err(format!("cannot read the licence expression {expression:?}")) }
}

struct Parser<'a> {
    words: &'a [&'a str],
    accepted: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    fn any(&mut self) -> Option<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Some(met)
    }

    fn all(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let met = self.any()?;
            return self.take(")").then_some(met);
        }
        let name = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            return Some((self.accepted)(&format!("{name} WITH {exception}")));
        }
        Some((self.accepted)(name))
    }

    fn name(&mut self) -> Option<&'a str> {
        let (name, rest) = self.words.split_first()?;
        if matches!(*name, "AND" | "OR" | "WITH" | "(" | ")") {
            return None;
        }
        self.words = rest;
        Some(name)
    }

    fn take(&mut self, wanted: &str) -> bool {
        match self.words.split_first() {
            Some((word, rest)) if *word == wanted => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    fn met(expression: &str) -> bool {
        satisfied(expression, &|name| ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].contains(&name)).unwrap()
    }

    #[test]
    fn one_accepted_alternative_is_enough() {
        assert!(met("GPL-3.0 OR MIT"));
        assert!(met("GPL-3.0/MIT"));
        assert!(!met("GPL-3.0 OR Apache-2.0"));
    }

    #[test]
    fn every_part_of_a_conjunction_must_be_accepted() {
        assert!(met("MIT AND Zlib"));
        assert!(!met("MIT AND GPL-3.0"));
        assert!(met("(GPL-3.0 OR MIT) AND Zlib"));
        assert!(!met("GPL-3.0 OR MIT AND BSD-3-Clause"));
    }

    #[test]
    fn exception_is_part_of_the_name() {
        assert!(met("Apache-2.0 WITH LLVM-exception"));
        assert!(!met("MIT WITH LLVM-exception"));
    }

    #[test]
    fn expression_that_cannot_be_read_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT Zlib", "AND MIT"] {
            assert!(satisfied(expression, &|_| true).is_err(), "{expression:?}");
        }
    }
}
