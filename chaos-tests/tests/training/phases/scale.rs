//! Two nodes become eight and eight become three while they train.

use super::drill::{Drill, config, each};

const FOUNDERS: [u64; 2] = [4, 9];
const LATER: [u64; 6] = [1, 2, 6, 7, 11, 12];

/// Whether they come and go one by one or together, how many replicas shards have, and who stays.
#[derive(Clone, Copy, Debug)]
struct Case {
    together: bool,
    replicas: usize,
    stay: [u64; 3],
}

impl Case {
    fn run(&self) {
        let drill = Drill::new(
            &FOUNDERS,
            &LATER,
            config(FOUNDERS.len(), self.replicas),
            &[],
        );
        drill.until_round(4);
        let mut members = FOUNDERS.to_vec();
        for id in LATER {
            drill.start(id);
            members.push(id);
            members.sort_unstable();
            if !self.together {
                drill.until_steady(&members, 3);
            }
        }
        drill.until_steady(&members, 3);
        for id in members
            .clone()
            .into_iter()
            .filter(|id| !self.stay.contains(id))
        {
            drill.drain(id);
            members.retain(|member| *member != id);
            if !self.together {
                drill.until_steady(&members, 3);
            }
        }
        assert_eq!(
            drill.finish(&self.stay),
            0,
            "whoever leaves in order takes nothing along"
        );
    }
}

#[test]
fn two_nodes_become_eight_and_eight_become_three() {
    let mut cases = Vec::new();
    for replicas in [0, 1, 2] {
        for together in [false, true] {
            cases.extend([[4, 9, 11], [1, 6, 12], [2, 4, 7]].map(|stay| Case {
                together,
                replicas,
                stay,
            }));
        }
    }
    each(&cases, |case| {
        case.run();
        true
    });
}
