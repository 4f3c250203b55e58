# shellcheck shell=bash
# What start.sbatch and add-nodes.sbatch share. Sourced by them; touches the folder TRAIN_FOLDER.
#
# TRAIN_FOLDER   a folder on a disk that all hosts reach: the cluster key, the bootstrap members' addresses, the checkpoints
# TRAIN_PORT     the UDP port of the first task of a host, 7000 unless set; the next tasks take the ports behind it
# TRAIN_SLOWMO   the command slowmo; slowmo unless set
# TRAIN_REQUEUE  yes: a job that was drained or preempted before its end goes back into the queue, and goes on from the newest checkpoint
#
# Variables that begin with SLOWMO_ are the nodes' own keys, handed on by sbatch and srun: SLOWMO_CONFIG, SLOWMO_TAU, …

# Seconds from the signal of `#SBATCH --signal` to the end of the job, less some for the end itself.
drain_seconds=110

# The folder of this file.
scripts=$(dirname "${BASH_SOURCE[0]}")

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Checks what every job needs, and sets what every node is told.
prepare() {
    [[ -n ${SLURM_JOB_ID:-} ]] || fail "this is a batch script: start it with sbatch"
    [[ -n ${TRAIN_FOLDER:-} ]] || fail "TRAIN_FOLDER is not set: name a folder on a disk that all hosts reach, sbatch --export=ALL,TRAIN_FOLDER=…"
    (($# > 0)) || fail "no training binary was named: sbatch … $(basename "$0") BINARY ARGS"
    export TRAIN_PORT=${TRAIN_PORT:-7000} TRAIN_SLOWMO=${TRAIN_SLOWMO:-slowmo}
    local key=$TRAIN_FOLDER/cluster.key mode
    mode=$(stat -c %a "$key") || fail "there is no cluster key: write one with $TRAIN_SLOWMO keygen --out $key"
    [[ $mode == 600 || $mode == 400 ]] || fail "$key has mode $mode, so others may read it: chmod 600 it, or write a new one"
    export SLOWMO_CLUSTER_KEY_FILE=$key
    export SLOWMO_CHECKPOINTS=${SLOWMO_CHECKPOINTS:-$TRAIN_FOLDER/checkpoints}
    # Bootstrap members wait so long for each other, and joiners for the cluster: hosts do not start all at once.
    export SLOWMO_MEET_TIMEOUT_MS=${SLOWMO_MEET_TIMEOUT_MS:-600000}
    # The sockets on which the nodes answer; on each host its own folder.
    export TRAIN_SOCKETS=/tmp/slowmo-$UID-$SLURM_JOB_ID
}

# Prints the nodes' keys, a line each. A secret stays in the environment of the job that has it.
print_keys() {
    local name
    for name in "${!SLOWMO_@}"; do
        [[ $name != SLOWMO_CLUSTER_KEY ]] || continue
        [[ ${!name} != *$'\n'* ]] || fail "$name has more than one line"
        printf '%s=%s\n' "$name" "${!name}"
    done
}

# Exports the keys that print_keys wrote into TRAIN_FOLDER. Nothing of the file is executed.
read_keys() {
    local keys=$TRAIN_FOLDER/keys line
    [[ -O $keys ]] || fail "$keys belongs to another user"
    while IFS= read -r line; do
        [[ $line =~ ^SLOWMO_[A-Z0-9_]+= ]] || fail "$keys has a line that is no key: ${line@Q}"
        export "${line?}"
    done <"$keys"
}

# Where the first task of each host of this job listens, a line a host.
addresses() {
    local hosts host
    hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || fail "scontrol cannot read $SLURM_JOB_NODELIST"
    for host in $hosts; do printf '%s:%s\n' "$host" "$TRAIN_PORT"; done
}

# Leaves this job's addresses to jobs that come later; `run` takes them away again.
enroll() {
    mkdir -p "$TRAIN_FOLDER/jobs"
    addresses >"$TRAIN_FOLDER/jobs/.$SLURM_JOB_ID"
    mv "$TRAIN_FOLDER/jobs/.$SLURM_JOB_ID" "$TRAIN_FOLDER/jobs/$SLURM_JOB_ID"
}

# The files of other jobs whose nodes train in TRAIN_FOLDER now. A job that was killed has left its file behind, so Slurm is asked.
others() {
    local file id
    for file in "$TRAIN_FOLDER"/jobs/*; do
        id=${file##*/}
        [[ -e $file && $id != "$SLURM_JOB_ID" ]] || continue
        [[ -z $(squeue --noheader --states=RUNNING --jobs="$id" 2>/dev/null) ]] || printf '%s\n' "$file"
    done
}

# Drains every node of this job. Not by a second signal: a node that gets SIGTERM twice ends at once, and Slurm may have sent it one.
drain() {
    trap '' TERM
    drained=yes
    echo "this job ends: its nodes hand over and leave" >&2
    srun --overlap --kill-on-bad-exit=0 --wait=0 "$scripts/node" --drain "$drain_seconds" &
    draining=$!
}

# Whether this job goes back into the queue. Slurm may have told a preemption to the tasks alone: they drain, and end as if all was
# done. A job that was cancelled does not run any more, and stays away.
goes_back() {
    [[ ${TRAIN_REQUEUE:-no} == yes ]] || return
    local job
    job=$(scontrol show job "$SLURM_JOB_ID") || fail "scontrol does not know this job"
    [[ $job =~ JobState=RUNNING && ($drained == yes || $job =~ PreemptTime=[0-9]) ]]
}

# Runs a node in every task until all have ended, whoever dies. Exits with what srun says.
run() {
    local step drained=no draining=""
    trap drain TERM
    srun --no-kill --kill-on-bad-exit=0 --wait=0 "$scripts/node" "$@" &
    step=$!
    # A signal interrupts a wait.
    while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done
    [[ -z $draining ]] || wait "$draining" || echo "not every node could be drained; see the lines before" >&2
    rm -f "$TRAIN_FOLDER/jobs/$SLURM_JOB_ID"
    if goes_back; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    wait "$step"
}
