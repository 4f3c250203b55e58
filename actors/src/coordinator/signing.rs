//! Signatures under the values that owners publish, and the entries that leaders ask votes for:
//! made, and checked where streams and frames arrive. See [`slowmo_protocol::published`].

use crate::context::NodeContext;
use slowmo_protocol::coordinator::{Attempt, Claim, Coordinator, Voter};
use slowmo_protocol::published::{Digest, Signature, Signed, ask, statement};
use slowmo_protocol::wire::{Frame, Header, Message};

/// Signs what this node publishes in an attempt. `None` if it has published something else in the
/// same attempt.
pub fn sign(context: &NodeContext, attempt: Attempt, digest: Digest) -> Option<Signed> {
    let identity = context.settings.identity;
    let me = Voter {
        node: identity.node,
        incarnation: identity.incarnation,
    };
    let first = context.signed.lock().note(attempt, digest);
    first.then(|| {
        let statement = statement(identity.cluster, attempt, me, digest);
        let signature = context.signer.sign(&statement);
        Signed { digest, signature }
    })
}

/// Signs what this node asks votes for, in a frame on its way out. `None` if the frame asks for
/// another entry than the one before under the same term, which is not sent.
pub fn sign_ask(context: &NodeContext, frame: Frame) -> Option<Frame> {
    let Frame::V1 {
        header,
        mut message,
    } = frame;
    if let Message::Accept { entry, signature } = &mut *message {
        *signature = asks(context, &header, entry.digest())?;
    }
    Some(Frame::V1 { header, message })
}

/// The signature under what this node asks votes for: made once, although every voter gets it.
fn asks(context: &NodeContext, header: &Header, entry: Digest) -> Option<Signature> {
    let identity = context.settings.identity;
    let place = (header.lineage, header.round, header.term);
    let me = Voter {
        node: identity.node,
        incarnation: identity.incarnation,
    };
    let sign = || {
        let statement = ask(identity.cluster, place, me, entry);
        context.signer.sign(&statement)
    };
    context.asked.lock().of(place, entry, sign)
}

/// Whether a node signed what it is said to have signed.
pub fn is_signed(context: &NodeContext, claim: &Claim) -> bool {
    let statement = claim.statement(context.settings.identity.cluster);
    let Claim { key, signed, .. } = claim;
    context.signer.verifies(key, &statement, &signed.signature)
}

/// The verdict of a frame's signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that matter are sound.
    Sound,
    /// One is not by the key that this node knows; the sender may know another one.
    Unknown,
    /// One is false, and the sender knows the same keys as this node.
    False,
}

/// Checks the signatures in a frame that the machine would act on.
pub fn check(
    context: &NodeContext,
    machine: &Coordinator,
    header: &Header,
    message: &Message,
) -> Verdict {
    let claims = machine.claims(header, message);
    if claims.iter().all(|claim| is_signed(context, claim)) {
        return Verdict::Sound;
    }
    let place = machine.place();
    if (header.lineage, header.round) == (place.lineage, place.round) {
        Verdict::False
    } else {
        Verdict::Unknown
    }
}
