// What is said about a job, in words.

import { counted } from "../turns/api.js";
import { inWords } from "../turns/thread.js";

const OPEN = new Set(["queued", "running"]);
const KINDS = { deep_work: "Deep work", coding: "Coding", computer: "Computer" };
const STATES = {
  queued: "Waiting",
  running: "At work",
  stopping: "Cancelling",
  completed: "Done",
  failed: "Failed",
  cancelled: "Cancelled",
  interrupted: "Interrupted",
  budget_exhausted: "Out of budget",
};
const ENDS = {
  completed: "is done",
  failed: "has failed",
  cancelled: "was cancelled",
  interrupted: "was interrupted",
  budget_exhausted: "used up its budget",
};
const CALLS = {
  search_history: "Searching the conversation",
  read_message: "Reading a message",
  note_save: "Keeping a note",
  note_list: "Reading its notes",
  note_remove: "Forgetting a note",
  webhook_post: "Sending a message to an address of yours",
  recall: "Looking through what was said before",
  list_files: "Looking at the files",
  read_file: "Reading a file",
  search_files: "Searching the files",
  write_file: "Writing a file",
  edit_file: "Editing a file",
  delete_file: "Deleting a file",
  run_checks: "Running the checks",
  run_command: "Running a command",
  show_changes: "Looking at its changes",
  commit: "Committing",
};

export const isOpen = (job) => OPEN.has(job.state);

export const kindOf = (job) => KINDS[job.kind] ?? inWords(job.kind);

/** What a job looks like: its state, or that it is to stop. */
export function lookOf(job) {
  return isOpen(job) && job.cancel_requested ? "stopping" : job.state;
}

export const stateOf = (job) => STATES[lookOf(job)] ?? inWords(job.state);

export const endOf = (job) => `${kindOf(job)} ${ENDS[job.state] ?? "has ended"}`;

/** What an open job does at this moment; why another one has ended. */
export function doingOf(job) {
  if (!isOpen(job)) return job.state === "completed" ? "" : (job.error_message ?? "");
  if (job.cancel_requested) return "It ends as soon as what it does can be stopped.";
  if (job.state === "queued") {
    return job.attempts ? "Its process ended. Another one takes it over." : "Waiting for a worker";
  }
  // of the calls of one response, what runs, not what waits for it
  const [current] = ["running", "requested", "started"].flatMap((state) =>
    job.steps.filter((step) => step.state === state),
  );
  if (!current) return "Going on";
  if (current.kind === "provider") return "Thinking";
  return CALLS[current.name] ?? `Using ${inWords(current.name)}`;
}

export function factsOf(job) {
  const { attempts, steps_done: done, computer } = job;
  const facts = [];
  if (done) facts.push(`${counted(done, "step")} done`);
  const unknown = job.steps.filter((step) => step.kind === "tool" && step.state === "interrupted");
  if (unknown.length) facts.push(`${unknown.length} of unknown outcome`);
  if (computer) facts.push(`on ${computer}`);
  if (attempts === 2) facts.push("taken over after a restart");
  if (attempts > 2) facts.push(`taken over ${attempts - 1} times after restarts`);
  return facts.join(" · ");
}

/** 3:07, or 1:02:09 from an hour on. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  return shown.map((part, n) => (n ? String(part).padStart(2, "0") : part)).join(":");
}
