//! A figure: what is measured on both sides and how they are compared.

use std::panic::{AssertUnwindSafe, catch_unwind};

use norfab_peer_tests::{Release, Side};
use serde_json::{Value, json};

use crate::machine::BusyCores;

/// The Python release that we compare with.
const PYTHON: Side = Side::Python(Release::V0_25_0);

/// How thorough a run is.
pub struct Plan {
    /// Whether to take fewer samples: minutes instead of a quarter of an hour.
    pub quick: bool,
    /// Whether Python and the bare router are left out: one build of ours is compared with another.
    pub ours: bool,
}

impl Plan {
    /// The first number in a quick run, the second in a full one.
    pub fn either(&self, quick: u32, full: u32) -> u32 {
        if self.quick { quick } else { full }
    }
}

/// Which direction is better.
#[derive(Clone, Copy)]
pub enum Better {
    /// Times, CPU and memory.
    Lower,
    /// Rates.
    Higher,
}

/// One row of the table of figures.
pub struct Figure {
    /// Its name on the command line and in the output.
    pub name: &'static str,
    /// The unit of all its numbers.
    pub unit: &'static str,
    /// Which direction is better.
    pub better: Better,
    /// Measures one side. Panics if that side does not do what is measured; not a number where it cannot be measured.
    pub measure: fn(&Plan, Side) -> f64,
    /// Measures what something plain reaches that does only this: libzmq, curl.
    pub limit: Option<fn(&Plan) -> f64>,
}

/// The numbers of a figure; a number is missing if its side failed.
pub struct Measured<'a> {
    figure: &'a Figure,
    ours: Option<f64>,
    python: Option<f64>,
    limit: Option<f64>,
    busy_cores: f64,
}

impl Figure {
    /// Measures both sides and the limit. What goes wrong on one side is printed and does not stop the others.
    pub fn run(&self, plan: &Plan) -> Measured<'_> {
        let busy = BusyCores::start();
        let side = |side| catch_unwind(AssertUnwindSafe(|| (self.measure)(plan, side))).ok();
        let ours = side(Side::Ours);
        let (python, limit) = if plan.ours {
            (Some(f64::NAN), self.limit.map(|_| f64::NAN))
        } else {
            (side(PYTHON), self.limit.and_then(|limit| catch_unwind(AssertUnwindSafe(|| limit(plan))).ok()))
        };
        Measured { figure: self, ours, python, limit, busy_cores: busy.stop() }
    }
}

impl Measured<'_> {
    /// Whether there is a number for everything.
    pub fn is_complete(&self) -> bool {
        self.ours.is_some() && self.python.is_some() && (self.limit.is_some() || self.figure.limit.is_none())
    }

    /// One line of JSON.
    pub fn json(&self) -> Value {
        let mut line = json!({
            "figure": self.figure.name,
            "ours": self.ours.map(rounded),
            "python": self.python.map(rounded),
            "ratio_to_python": self.ratio().map(rounded),
            "unit": self.figure.unit,
            "machine_busy_cores": rounded(self.busy_cores),
        });
        if self.figure.limit.is_some() {
            line["limit"] = self.limit.map(rounded).into();
            line["ratio_to_limit"] = self.ours.zip(self.limit).map(|(ours, limit)| rounded(ours / limit)).into();
        }
        line
    }

    /// One line of a table.
    pub fn text(&self) -> String {
        let number = |value: Option<f64>| match value {
            None => "failed".to_owned(),
            Some(value) if value.is_nan() => "-".to_owned(),
            Some(value) => rounded(value).to_string(),
        };
        let mut line = format!(
            "{:<24} ours {:>10}  python {:>10}  {:<7}",
            self.figure.name,
            number(self.ours),
            number(self.python),
            self.figure.unit
        );
        if let Some(ratio) = self.ratio() {
            line += &format!("  {} times better", rounded(ratio));
        }
        if self.figure.limit.is_some() {
            line += &format!("  bare {}", number(self.limit));
        }
        line
    }

    /// How many times better we are than Python.
    fn ratio(&self) -> Option<f64> {
        let (ours, python) = self.ours.zip(self.python)?;
        let ratio = match self.figure.better {
            Better::Lower => python / ours,
            Better::Higher => ours / python,
        };
        ratio.is_finite().then_some(ratio)
    }
}

/// Three significant digits are more than any of these figures has.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powf(2.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}
