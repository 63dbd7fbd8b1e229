//! The commands, one file each.

use clap::Subcommand;

use crate::Exit;
use crate::output::Out;

mod ack;
mod completions;
mod configure;
mod consent;
mod create;
mod delete;
mod dump;
mod extend;
mod filter;
mod history;
mod nack;
mod pause;
mod peek;
mod purge;
mod queues;
mod rebuild;
mod receive;
mod redrive;
mod reject;
mod release;
mod resume;
mod run_command;
mod send;
mod settle;
mod stats;
mod work;

#[derive(Subcommand)]
pub enum Command {
    Send(send::Args),
    Receive(receive::Args),
    Ack(ack::Args),
    Nack(nack::Args),
    Release(release::Args),
    Extend(extend::Args),
    Reject(reject::Args),
    Work(work::Args),
    Queues(queues::Args),
    Stats(stats::Args),
    Peek(peek::Args),
    Create(create::Args),
    Configure(configure::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Purge(purge::Args),
    Redrive(redrive::Args),
    Delete(delete::Args),
    Dump(dump::Args),
    History(history::Args),
    Rebuild(rebuild::Args),
    #[command(hide = true)]
    Completions(completions::Args),
}

pub fn run(command: Command, out: &mut Out) -> anyhow::Result<Exit> {
    match command {
        Command::Send(args) => send::run(args, out),
        Command::Receive(args) => receive::run(args, out),
        Command::Ack(args) => ack::run(args, out),
        Command::Nack(args) => nack::run(args, out),
        Command::Release(args) => release::run(args, out),
        Command::Extend(args) => extend::run(args, out),
        Command::Reject(args) => reject::run(args, out),
        Command::Work(args) => work::run(args, out),
        Command::Queues(args) => queues::run(args, out),
        Command::Stats(args) => stats::run(args, out),
        Command::Peek(args) => peek::run(args, out),
        Command::Create(args) => create::run(args, out),
        Command::Configure(args) => configure::run(args, out),
        Command::Pause(args) => pause::run(args, out),
        Command::Resume(args) => resume::run(args, out),
        Command::Purge(args) => purge::run(args, out),
        Command::Redrive(args) => redrive::run(args, out),
        Command::Delete(args) => delete::run(args, out),
        Command::Dump(args) => dump::run(args, out),
        Command::History(args) => history::run(args, out),
        Command::Rebuild(args) => rebuild::run(args, out),
        Command::Completions(args) => completions::run(args, out),
    }
}
