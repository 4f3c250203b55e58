//! Live progress: a bar for each node on a terminal, plain lines elsewhere.

use crate::console::Console;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// On outputs other than terminals, one line is printed per this many agreed rounds.
const ROUNDS_PER_LINE: u64 = 5;
/// Template of a node's bar.
const BAR: &str = "{prefix} {bar:32.cyan/238} {pos:>4}/{len} steps  {msg}";
/// Digits of a digest that are shown while it changes.
const DIGEST_DIGITS: usize = 16;

/// Known progress of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    step: u64,
    loss: Option<f64>,
    round: u64,
    /// Whether it was killed; its last message may arrive after its end.
    killed: bool,
}

/// Live view on the terminal, or on other standard outputs.
pub struct View {
    console: Console,
    nodes: Vec<Progress>,
    agreed: u64,
    bars: Option<Bars>,
}

struct Bars {
    all: MultiProgress,
    steps: u64,
    style: ProgressStyle,
    of_node: Vec<ProgressBar>,
    footer: ProgressBar,
}

impl View {
    /// A view of `nodes` nodes that train for `steps` inner steps.
    pub fn new(console: Console, nodes: usize, steps: u64) -> Self {
        let bars = console
            .bars()
            .map(|target| Bars::new(MultiProgress::with_draw_target(target), nodes, steps));
        Self {
            console,
            nodes: vec![Progress::default(); nodes],
            agreed: 0,
            bars,
        }
    }

    /// Records that a node has completed `step` inner steps.
    pub fn step(&mut self, node: usize, step: u64, loss: f64) {
        let progress = &mut self.nodes[node - 1];
        progress.step = step;
        progress.loss = Some(loss);
        self.draw(node);
    }

    /// Adds one more node, with the next higher id.
    pub fn add(&mut self, node: usize) {
        self.nodes.resize(node, Progress::default());
        if let Some(bars) = &mut self.bars {
            bars.add(node);
        }
    }

    /// Shows an event of a node at a step of the training.
    pub fn note(&mut self, node: usize, step: u64, what: &str) {
        match self
            .bars
            .as_ref()
            .and_then(|bars| bars.of_node.get(node - 1))
        {
            Some(bar) => bar.set_message(what.to_owned()),
            None => self.console.say(format!("step {step:>5}  {what}")),
        }
    }

    /// Shows that a node was killed at a step of the training.
    pub fn killed(&mut self, node: usize, step: u64) {
        self.nodes[node - 1].killed = true;
        self.note(node, step, &format!("node {node} was killed (SIGKILL)"));
    }

    /// Records that a node has closed a round.
    pub fn round(&mut self, node: usize, round: u64) {
        self.nodes[node - 1].round = round;
        self.draw(node);
    }

    /// Shows that all averaged nodes reported the same digest.
    pub fn agreed(&mut self, round: u64, step: u64, digest: &str, nodes: usize) {
        self.agreed += 1;
        let digest = digest.get(..DIGEST_DIGITS).unwrap_or(digest);
        if let Some(bars) = &self.bars {
            bars.footer.set_message(format!(
                "outer round {round}: digest {digest}, bit-identical on all {nodes} nodes"
            ));
        } else if self.agreed.is_multiple_of(ROUNDS_PER_LINE) {
            let losses: Vec<String> = self
                .nodes
                .iter()
                .filter(|node| !node.killed)
                .map(Progress::loss_text)
                .collect();
            let losses = losses.join(" ");
            self.console.say(format!(
                "step {step:>5}  round {round:>4}  digest {digest} on all {nodes} nodes  loss \
                     {losses}"
            ));
        }
    }

    /// Prints other output without disturbing the bars.
    pub fn above(&self, show: impl FnOnce()) {
        match &self.bars {
            Some(bars) => bars.all.suspend(show),
            None => show(),
        }
    }

    /// Leaves the bars as they are; later output appears below.
    pub fn close(&self) {
        if let Some(bars) = &self.bars {
            bars.of_node
                .iter()
                .chain([&bars.footer])
                .for_each(ProgressBar::abandon);
        }
    }

    fn draw(&self, node: usize) {
        let Some(bar) = self
            .bars
            .as_ref()
            .and_then(|bars| bars.of_node.get(node - 1))
        else {
            return;
        };
        let progress = self.nodes[node - 1];
        if progress.killed {
            return;
        }
        bar.set_position(progress.step);
        bar.set_message(format!(
            "loss {}  round {:>3}",
            progress.loss_text(),
            progress.round
        ));
    }
}

impl Progress {
    fn loss_text(&self) -> String {
        self.loss
            .map_or_else(|| "  –   ".to_owned(), |loss| format!("{loss:.4}"))
    }
}

impl Bars {
    fn new(all: MultiProgress, nodes: usize, steps: u64) -> Self {
        // A template that does not parse falls back to indicatif's own bar.
        let style = ProgressStyle::with_template(BAR)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━━─");
        let plain =
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        let footer = all.add(ProgressBar::new(1).with_style(plain));
        footer.set_message("no outer round yet");
        let mut bars = Self {
            all,
            steps,
            style,
            of_node: Vec::new(),
            footer,
        };
        (1..=nodes).for_each(|node| bars.add(node));
        bars
    }

    fn add(&mut self, node: usize) {
        let bar = self.all.insert_before(
            &self.footer,
            ProgressBar::new(self.steps).with_style(self.style.clone()),
        );
        bar.set_prefix(format!("node {node:>2}"));
        bar.set_message("meets the others");
        self.of_node.push(bar);
    }
}
