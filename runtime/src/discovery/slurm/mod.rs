//! The nodes of a Slurm step, from the variables that Slurm sets for it. Pure: the caller passes
//! the variables.

mod hostlist;

use crate::printable::printable;

pub use hostlist::{Fault, HOSTS_MAX, HostlistError, LIST_BYTES_MAX, expand};

/// Variables that hold the hosts and the tasks per host: those of the step, else those of the job.
const VARIABLES: [[&str; 2]; 2] = [
    ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"],
    ["SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"],
];

/// Reason why Slurm's variables do not yield nodes. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    /// This process is not part of a job.
    #[error(
        "discover = slurm: neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set; start the \
         node with srun, or name the others in peers"
    )]
    NoJob,
    /// The host list cannot be parsed.
    #[error("{variable} = {list}: {error}; name the others in peers instead")]
    Hosts {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable, cut after [`SHOWN_MAX`] characters.
        list: String,
        /// The fault in the list.
        error: HostlistError,
    },
    /// The tasks per host cannot be parsed, or their number of hosts differs from the host list.
    #[error(
        "{variable} = {text} does not say how many tasks each of {hosts} hosts has; name the \
         others in peers instead"
    )]
    Tasks {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable, cut after [`SHOWN_MAX`] characters.
        text: String,
        /// Number of hosts in the list.
        hosts: usize,
    },
    /// More than [`HOSTS_MAX`] nodes, or a port above 65535.
    #[error(
        "discover = slurm:{port}: the tasks of a host listen from {port} on, and do not all fit; \
         choose a lower port or fewer tasks"
    )]
    Ports {
        /// The first port.
        port: u16,
    },
}

/// Largest number of characters of a variable that an error shows.
pub const SHOWN_MAX: usize = 200;

/// The addresses of the step's nodes, as `host:port`: each task of a host listens at `port` plus
/// its `SLURM_LOCALID`.
///
/// # Errors
/// The variables are missing or invalid.
pub fn names(
    port: u16,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>, SlurmError> {
    let set = |[hosts, tasks]: [&'static str; 2]| {
        variable(hosts).map(|list| (hosts, list, tasks, variable(tasks)))
    };
    let (hosts_from, list, tasks_from, tasks) = VARIABLES
        .into_iter()
        .find_map(set)
        .ok_or(SlurmError::NoJob)?;
    let hosts = expand(&list).map_err(|error| SlurmError::Hosts {
        variable: hosts_from,
        list: shown(&list),
        error,
    })?;
    let tasks = match tasks {
        Some(text) => tasks_of(&text, hosts.len()).ok_or(SlurmError::Tasks {
            variable: tasks_from,
            text: shown(&text),
            hosts: hosts.len(),
        })?,
        None => vec![1; hosts.len()],
    };
    let mut names = Vec::new();
    for (host, tasks) in hosts.iter().zip(tasks) {
        for task in 0..tasks {
            if names.len() >= HOSTS_MAX {
                return Err(SlurmError::Ports { port });
            }
            let port = port.checked_add(task).ok_or(SlurmError::Ports { port })?;
            names.push(format!("{host}:{port}"));
        }
    }
    Ok(names)
}

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN_MAX).collect();
    printable(&cut).into_owned()
}

/// Parses the tasks of each host: `2(x3),1` is 2, 2, 2, 1.
fn tasks_of(text: &str, hosts: usize) -> Option<Vec<u16>> {
    let mut tasks = Vec::with_capacity(hosts);
    for entry in text.split(',') {
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (entry, 1),
        };
        let count = count.parse::<u16>().ok().filter(|count| *count > 0)?;
        if times > hosts - tasks.len() {
            return None;
        }
        tasks.extend(std::iter::repeat_n(count, times));
    }
    (tasks.len() == hosts).then_some(tasks)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(variables: &[(&str, &str)], port: u16) -> Result<Vec<String>, SlurmError> {
        names(port, |name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_task_of_each_host_is_named() {
        let job = [
            ("SLURM_JOB_NODELIST", "n[1-9]"),
            ("SLURM_TASKS_PER_NODE", "1(x9)"),
        ];
        let step = [
            ("SLURM_STEP_NODELIST", "n[1-3]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
        ];
        assert_eq!(
            of(&[step, job].concat(), 7000).unwrap(),
            ["n1:7000", "n1:7001", "n2:7000", "n2:7001", "n3:7000"]
        );
        assert_eq!(of(&job, 7000).unwrap().len(), 9);
        assert_eq!(
            of(&step[..1], 7000).unwrap(),
            ["n1:7000", "n2:7000", "n3:7000"]
        );
    }

    #[test]
    fn what_makes_no_sense_says_what_to_do() {
        assert_eq!(of(&[], 7000), Err(SlurmError::NoJob));
        let told = of(&[("SLURM_JOB_NODELIST", "n[1-")], 7000)
            .unwrap_err()
            .to_string();
        assert!(
            told.starts_with("SLURM_JOB_NODELIST = n[1-: brackets do not match (at byte 1"),
            "{told}"
        );
        for tasks in [
            "",
            "x",
            "0(x2)",
            "1",
            "1(x3)",
            "1(x2",
            "1,1,1",
            "1(x99999999999999999999)",
            "70000(x2)",
        ] {
            let told = of(
                &[
                    ("SLURM_STEP_NODELIST", "n[1-2]"),
                    ("SLURM_STEP_TASKS_PER_NODE", tasks),
                ],
                7000,
            );
            assert!(
                matches!(told, Err(SlurmError::Tasks { hosts: 2, .. })),
                "{tasks}: {told:?}"
            );
        }
        let many = |tasks, port| {
            of(
                &[
                    ("SLURM_STEP_NODELIST", "n[1-2]"),
                    ("SLURM_STEP_TASKS_PER_NODE", tasks),
                ],
                port,
            )
        };
        assert_eq!(
            many("2(x2)", 65_535),
            Err(SlurmError::Ports { port: 65_535 })
        );
        assert_eq!(many("2049(x2)", 1), Err(SlurmError::Ports { port: 1 }));
        assert_eq!(many("2048(x2)", 1).unwrap().len(), HOSTS_MAX);
    }

    proptest! {
        #[test]
        fn any_variables_are_bounded(
            hosts in "[a-c0-9,\\[\\]-]{0,20}",
            tasks in "[0-9x(),]{0,12}",
            port in 1u16..
        ) {
            if let Ok(names) = of(
                &[("SLURM_JOB_NODELIST", &hosts), ("SLURM_TASKS_PER_NODE", &tasks)],
                port
            ) {
                prop_assert!(
                    names.len() <= HOSTS_MAX && names.iter().all(|name| name.contains(':'))
                );
            }
        }
    }
}
