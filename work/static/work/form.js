// A job that a person asks for without the model.
//
// The request keeps its key until the service has taken it: sent again after a lost answer or a
// reload, it is still one job.

import { call, counted, newKey, Problem } from "../turns/api.js";
import { showsSomething } from "../turns/blanks.js";

const NEW = "new";
const GONE = "This conversation does not exist any more. No job can be started here.";

export class Form {
  /** `told` gives bounds in bytes and seconds; `started(job)` is called when the service has the job. */
  constructor(page, told, { started }) {
    this.page = page;
    this.told = told;
    this.started = started;
    this.form = document.getElementById("job-form");
    this.opener = document.getElementById("new-job");
    this.goal = document.getElementById("job-goal");
    this.context = document.getElementById("job-context");
    this.minutes = document.getElementById("job-minutes");
    this.more = document.getElementById("job-more");
    this.computer = document.getElementById("job-computer");
    this.cwd = document.getElementById("job-cwd");
    this.problem = document.getElementById("job-problem");
    this.button = document.getElementById("job-start");
    this.computers = null;
    this.wanted = null;
    this.isOver = false;
    this.encoder = new TextEncoder();
    this.opener.addEventListener("click", () => this.open());
    document.getElementById("job-discard").addEventListener("click", () => this.discard());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.form.addEventListener("input", () => this.changed());
    this.form.addEventListener("change", (event) => {
      if (event.target.name === "kind") this.place();
      if (event.target === this.computer) {
        this.chosen();
        this.keep();
      }
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.restore();
  }

  get where() {
    return `job.${this.page.conversation ?? NEW}`;
  }

  get kind() {
    // not of FormData: it is without what is disabled, as all is until the page has begun
    return this.form.elements.kind.value;
  }

  /** What is asked for, as the API takes it. */
  get ask() {
    const ask = { kind: this.kind, goal: this.goal.value };
    if (this.context.value.trim()) ask.context = this.context.value;
    if (this.seconds !== null) ask.wall_clock_seconds = this.seconds;
    if (ask.kind === "coding") {
      ask.computer_id = this.computer.value;
      ask.cwd = this.cwd.value.trim();
    }
    return ask;
  }

  /** The time limit, null when there is none, NaN when it is no number. */
  get seconds() {
    const minutes = this.minutes.value.trim().replace(",", ".");
    return minutes ? Math.round(Number(minutes) * 60) : null;
  }

  /** The longest that a job of this kind may take. */
  get mostSeconds() {
    return this.told.wall_clock_seconds[this.kind];
  }

  // --- the form ---

  open() {
    this.form.hidden = false;
    this.opener.hidden = true;
    this.place();
    this.goal.focus();
  }

  close() {
    this.form.hidden = true;
    this.opener.hidden = false;
    this.refuse("");
  }

  discard() {
    this.clear();
    this.close();
    if (this.isOver) document.getElementById("jobs-title").focus();
    else this.opener.focus();
  }

  /** No job can be started here any more. What was written stays, to be read and copied. */
  finish() {
    this.page.kept.keepDraftOf(this.where, null);
    this.isOver = true;
    if (!this.goal.value.trim()) this.close();
    this.opener.disabled = true;
    for (const field of this.form.elements) {
      field.readOnly = true;
      field.disabled = !field.matches("textarea, #job-cwd, #job-minutes, #job-discard");
    }
    if (!this.form.hidden) this.refuse(GONE);
  }

  clear() {
    this.form.reset();
    this.tried = null;
    this.wanted = null;
    this.page.kept.keepDraftOf(this.where, null);
  }

  /** Show where a coding job is to work, once that is known. False when it is not. */
  async place() {
    const codes = this.kind === "coding";
    document.getElementById("job-place").hidden = !codes;
    document.getElementById("job-minutes-most").textContent =
      `${lasting(this.mostSeconds)} at most, and if this is left empty.`;
    if (!codes) return true;
    try {
      await this.load();
      return true;
    } catch (error) {
      this.refuse(error.message);
      return false;
    }
  }

  async load() {
    const { computers } = await call("GET", "/computers");
    const chosen = this.computer.value || this.wanted;
    this.computers = new Map(computers.map((one) => [one.id, one]));
    this.computer.replaceChildren(...computers.map((one) => new Option(one.name, one.id)));
    if (this.computers.has(chosen)) this.computer.value = chosen;
    document.getElementById("job-no-computer").hidden = computers.length > 0;
    for (const field of [this.computer, this.cwd]) {
      field.hidden = field.labels[0].hidden = computers.length === 0;
    }
    if (!this.cwd.value || this.computer.value !== chosen) this.chosen();
    else this.describe();
  }

  /** A computer was chosen: begin in a directory that jobs may work in there. */
  chosen() {
    const { roots } = this.describe();
    if (!roots.some((root) => this.cwd.value.startsWith(root))) this.cwd.value = roots[0] ?? "";
  }

  describe() {
    const computer = this.computers?.get(this.computer.value);
    const roots = computer?.roots ?? [];
    document.getElementById("job-roots").replaceChildren(...roots.map((root) => new Option(root, root)));
    document.getElementById("job-tier").textContent = computer ? mayDo(computer) : "";
    return { roots };
  }

  changed() {
    this.keep();
    this.refuse(this.outOfBounds());
  }

  /** Keep what is asked for, and where, even while that is not asked for. */
  keep() {
    if (this.isOver) return;
    const place = { computer_id: this.computer.value || this.wanted, cwd: this.cwd.value };
    const { ask, tried } = this;
    this.page.kept.keepDraftOf(this.where, { ask, place, minutes: this.minutes.value, tried });
  }

  /** Return what is wrong with what was written, an empty text when nothing is. */
  outOfBounds() {
    for (const [field, bytes, name] of [
      [this.goal, this.told.goal_bytes, "goal"],
      [this.context, this.told.context_bytes, "context"],
    ]) {
      const over = this.encoder.encode(field.value).length - bytes;
      if (over > 0) return `The ${name} is too long by ${counted(over, "byte")}.`;
    }
    const { seconds, mostSeconds: most } = this;
    const least = this.told.wall_clock_min_seconds;
    if (seconds === null || (seconds >= least && seconds <= most)) return "";
    return `The time limit is to be in minutes, from ${lasting(least)} to ${lasting(most)}.`;
  }

  refuse(sentence) {
    if (this.problem.textContent !== sentence) this.problem.textContent = sentence;
    this.goal.toggleAttribute("aria-invalid", sentence !== "" && /goal/.test(sentence));
    const isOfTime = /^The time limit/.test(sentence);
    this.minutes.toggleAttribute("aria-invalid", isOfTime);
    if (isOfTime) this.more.open = true;
  }

  /** A form that was being written is there again; what was being sent is sent again. */
  restore() {
    const kept = this.page.kept.draftOf(this.where);
    if (!kept?.ask) return;
    const { ask, place } = kept;
    this.tried = kept.tried ?? null;
    this.wanted = place?.computer_id ?? null;
    this.form.elements.kind.value = ask.kind;
    this.goal.value = ask.goal;
    this.context.value = ask.context ?? "";
    this.cwd.value = place?.cwd ?? "";
    this.minutes.value = kept.minutes ?? "";
    this.more.open = Boolean(ask.context || kept.minutes);
    if (this.tried) this.post(this.tried);
    else if (this.goal.value.trim()) this.form.hidden = !(this.opener.hidden = true);
    this.place();
  }

  // --- sending ---

  async submit() {
    if (this.isOver) return;
    if (!showsSomething(this.goal.value)) {
      this.refuse("Say what the job is to do: its goal.");
      this.goal.focus();
      return;
    }
    // the computers are still on their way, did not come, or there was none
    if (this.kind === "coding" && !this.computer.value && !(await this.place())) return;
    const { ask } = this;
    const isNowhere = ask.kind === "coding" && !ask.computer_id;
    const problem = isNowhere ? "Choose a computer first." : this.outOfBounds();
    if (problem) {
      this.refuse(problem);
      return;
    }
    // the same words after a lost answer are the same request
    const isRepeat = this.tried && JSON.stringify(this.tried.ask) === JSON.stringify(ask);
    this.tried = isRepeat ? this.tried : { ask, key: newKey(), room: newKey() };
    this.changed();
    this.post(this.tried);
  }

  async post({ ask, key, room }) {
    this.button.disabled = true;
    try {
      const { where } = this;
      const job = await start(this.page, ask, key, room);
      this.page.kept.keepDraftOf(where, null);
      this.clear();
      this.close();
      this.started(job);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (this.isOver) return;
      this.form.hidden = false;
      this.opener.hidden = true;
      this.refuse(explained(error));
      if (!error.mayPass) {
        this.tried = null;
        this.keep();
      }
      if (error.status === 401) this.page.signedOut();
    } finally {
      this.button.disabled = this.isOver;
    }
  }
}

/** Start a job; the same key starts it once. */
export async function start(page, ask, key, room) {
  const title = ask.goal.trim().split("\n")[0].slice(0, 80);
  const conversation = await page.room(room, title);
  return call("POST", `/conversations/${conversation}/jobs`, { ...ask, client_key: key });
}

export function explained(error) {
  if (error.mayPass && error.code !== "paused") {
    return `${error.message} Nobody knows whether the job has begun. Try again: it begins once.`;
  }
  if (error.code === "not_found") return "The computer, or this conversation, is gone.";
  const wait = error.retryAfter ? ` Try again in ${counted(error.retryAfter, "second")}.` : "";
  return error.message + wait;
}

function lasting(seconds) {
  return seconds < 60 ? counted(seconds, "second") : counted(seconds / 60, "minute");
}

function mayDo({ tier, checks }) {
  if (tier === "probe") return "Jobs may read there, and change nothing.";
  if (tier === "shell") return "Jobs may change files and run any command there.";
  const named = checks.length ? ` and run ${checks.join(", ")}` : "";
  return `Jobs may change files there${named}.`;
}
