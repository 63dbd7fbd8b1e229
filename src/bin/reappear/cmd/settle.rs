//! What the commands that settle deliveries share: one result line for each receipt.

use std::path::PathBuf;

use reappear::{ErrorKind, Receipt, Store};

use crate::Exit;
use crate::output::{Json, Out, escape};
use crate::store::with_store;

#[derive(clap::Args)]
pub struct Receipts {
    /// The store's directory
    pub store: PathBuf,
    /// Receipts, as receive printed them
    #[arg(required = true, value_name = "RECEIPT")]
    pub receipts: Vec<Receipt>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Settles one receipt after the other. A refusal of one does not hinder the others; a failure of
/// the store ends it.
pub fn each(
    args: &Receipts,
    done: &str,
    out: &mut Out,
    settle: impl AsyncFn(&Store, &Receipt) -> Result<(), reappear::Error>,
) -> anyhow::Result<Exit> {
    with_store(&args.store, false, async |store| {
        let mut exit = Exit::Done;
        for receipt in &args.receipts {
            let refusal = match settle(store, receipt).await {
                Ok(()) => None,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleReceipt) => Some(error),
                Err(error) => return Err(error.into()),
            };
            if refusal.is_some() {
                exit = Exit::Nothing;
            }
            out.line(&line(args.json, done, receipt, refusal.as_ref()))?;
        }
        Ok(exit)
    })
}

fn line(json: bool, done: &str, receipt: &Receipt, refusal: Option<&reappear::Error>) -> String {
    if !json {
        let result = refusal.map_or_else(|| done.to_owned(), |error| format!("{}: {error}", error.kind()));
        return format!("{}  {}", receipt.id(), escape(&result));
    }
    let mut json = Json::line();
    json.put("id", &receipt.id());
    json.put("receipt", &receipt.to_string());
    json.put("result", refusal.map_or(done, |error| error.kind().as_str()));
    if let Some(error) = refusal {
        json.put("error", &error.to_string());
        json.some("current_epoch", error.current_epoch());
    }
    json.end()
}
