// The jobs of this conversation: beside the messages, or as a drawer where there is no room.

import { counted } from "../turns/api.js";
import { confirmed } from "../turns/confirm.js";
import { isWithin } from "../turns/reading.js";
import { clone, drawStep, isNewer } from "../turns/thread.js";
import { clock, doingOf, factsOf, isOpen, kindOf, lookOf, stateOf } from "./words.js";

const WIDE = matchMedia("(min-width: 1100px)");
const CHOICE = "jobs.rail";

export class Rail {
  /**
   * `acts` has: cancel(job), report(job), again(job, button), each may throw a Problem; and
   * overtaken(job), called when a job ends while its cancelling is asked about.
   */
  constructor(page, acts) {
    this.page = page;
    this.acts = acts;
    this.jobs = new Map();
    this.asked = null;
    this.element = document.getElementById("jobs");
    this.list = document.getElementById("job-list");
    this.lines = document.getElementById("jobs-inline");
    this.opener = document.getElementById("open-jobs");
    this.shade = document.getElementById("jobs-shade");
    this.main = document.querySelector("main");
    // before the list of conversations, which is long for whoever goes by the keyboard
    const skip = clone("skip-to-jobs");
    [...document.querySelectorAll(".skip")].at(-1).after(skip);
    skip.addEventListener("click", (event) => {
      event.preventDefault();
      this.open();
    });
    this.opener.addEventListener("click", () => this.toggle());
    document.getElementById("close-jobs").addEventListener("click", () => this.close());
    this.shade.addEventListener("click", () => this.close());
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !WIDE.matches) this.close();
    });
    this.list.addEventListener("click", (event) => this.click(event));
    this.lines.addEventListener("click", (event) => {
      const line = event.target.closest("li");
      if (line) this.lead(line.dataset.id);
    });
    // whether a goal is cut shows once it is laid out, and changes with the width
    this.sizes = new ResizeObserver((seen) => seen.forEach(({ target }) => offerWhole(target)));
    WIDE.addEventListener("change", () => this.set(WIDE.matches && this.isWanted));
    this.ticking = setInterval(() => this.tick(), 1000);
  }

  get isShown() {
    return !this.element.hidden;
  }

  /** Whether the card of a job can be seen right now. */
  isInView(id) {
    const card = this.find(id);
    return this.isShown && card !== null && isWithin(card, this.list.parentElement);
  }

  get isWanted() {
    return (this.page.kept.choice(CHOICE) ?? this.jobs.size > 0) === true;
  }

  // --- what there is ---

  /** Show these jobs and no others. */
  showAll(jobs) {
    const kept = new Set(jobs.map((job) => job.id));
    for (const id of this.jobs.keys()) if (!kept.has(id)) this.remove(id);
    for (const job of jobs) this.draw(job);
    this.count();
    if (WIDE.matches && !this.isShown && this.isWanted) this.set(true);
  }

  show(job) {
    this.draw(job);
    this.count();
    if (WIDE.matches && !this.isShown && this.isWanted) this.set(true);
  }

  draw(job) {
    // the moment of the page's own clock at which the job began, or began to wait
    const began = performance.now() - job.elapsed_seconds * 1000;
    this.jobs.set(job.id, { ...job, began });
    const known = this.find(job.id);
    const card = known ?? clone("job");
    if (!known) this.sizes.observe(card.querySelector(".job-goal"));
    card.dataset.id = job.id;
    fill(card, job);
    const after = [...this.list.children].find((other) => this.isBefore(job, other));
    if (card.nextElementSibling !== (after ?? null) || !card.parentElement) {
      const focused = card.contains(document.activeElement) && document.activeElement;
      this.list.insertBefore(card, after ?? null);
      if (focused) focused.focus();
    }
    this.drawLine(job);
    this.tick();
    if (!isOpen(job)) this.withdraw(job);
  }

  /** Whether `job` stands above that other card: open ones first, then the newest. */
  isBefore(job, card) {
    const other = this.jobs.get(card.dataset.id);
    if (other.id === job.id) return false;
    if (isOpen(job) !== isOpen(other)) return isOpen(job);
    return isNewer(job.id, other.id);
  }

  drawLine(job) {
    const known = this.lines.querySelector(`[data-id="${CSS.escape(job.id)}"]`);
    if (!isOpen(job)) {
      known?.remove();
      return;
    }
    const line = known ?? clone("job-line");
    line.dataset.id = job.id;
    line.dataset.look = lookOf(job);
    line.querySelector(".job-line-words").textContent = `${kindOf(job)}: ${doingOf(job)}`;
    if (!known) this.lines.append(line);
  }

  remove(id) {
    // before its card: it gives the focus back to the card's button
    const wasAsked = this.asked?.id === id && this.asked.withdraw();
    if (this.asked?.id === id) this.asked = null;
    this.jobs.delete(id);
    const card = this.find(id);
    if (card) this.sizes.unobserve(card.querySelector(".job-goal"));
    card?.remove();
    this.lines.querySelector(`[data-id="${CSS.escape(id)}"]`)?.remove();
    if (!wasAsked || this.page.isGone) return;
    this.page.notice("This job was removed. There is nothing left to cancel.");
    setTimeout(() => document.getElementById("jobs-title").focus());
  }

  /** The conversation is gone, and its jobs. Only what is being written here keeps it open. */
  finish() {
    clearInterval(this.ticking);
    this.showAll([]);
    if (document.getElementById("job-form").hidden) this.set(false);
  }

  find(id) {
    return this.list.querySelector(`:scope > [data-id="${CSS.escape(id)}"]`);
  }

  count() {
    const open = [...this.jobs.values()].filter(isOpen).length;
    document.getElementById("jobs-open").textContent = open || "";
    this.opener.setAttribute("aria-label", open ? `Jobs, ${open} at work` : "Jobs");
    document.getElementById("no-jobs").hidden = this.jobs.size > 0;
    const isQuiet = document.getElementById("thread").children.length === 0;
    document.getElementById("jobs-quiet").hidden = !(open && isQuiet);
    this.page.occupy(this.jobs.size > 0);
  }

  tick() {
    for (const [id, job] of this.jobs) {
      const now = isOpen(job) ? (performance.now() - job.began) / 1000 : job.elapsed_seconds;
      for (const list of [this.list, this.lines]) {
        const time = list.querySelector(`:scope > [data-id="${CSS.escape(id)}"] .job-time`);
        if (time) time.textContent = clock(now);
      }
    }
  }

  // --- open and closed ---

  toggle() {
    if (this.isShown) this.close();
    else this.open();
  }

  open() {
    if (WIDE.matches) this.page.kept.keepChoice(CHOICE, true);
    this.set(true);
    document.getElementById("jobs-title").focus();
  }

  close() {
    if (WIDE.matches) this.page.kept.keepChoice(CHOICE, false);
    this.set(false);
    this.opener.focus();
  }

  set(isShown) {
    this.element.hidden = !isShown;
    this.opener.setAttribute("aria-expanded", String(isShown));
    const covers = isShown && !WIDE.matches;
    this.shade.hidden = !covers;
    this.main.inert = covers;
  }

  lead(id) {
    if (!this.isShown) this.set(true);
    const card = this.find(id);
    card?.scrollIntoView({ block: "nearest" });
    card?.focus({ preventScroll: true });
  }

  /** Where the rail covers the messages it goes out of their way. */
  makeWay() {
    if (!WIDE.matches) this.set(false);
  }

  // --- what a person does with a job ---

  click(event) {
    const button = event.target.closest("button[data-do]");
    const job = button && this.jobs.get(button.closest(".job").dataset.id);
    if (!job) return;
    if (button.dataset.do === "cancel") this.ask(job);
    if (button.dataset.do === "whole") turnWhole(button);
    if (button.dataset.do === "report") this.acts.report(job);
    if (button.dataset.do === "again") this.acts.again(job.id, button);
  }

  ask(job) {
    const words = "What it has done stays done. A report says how far it came.";
    const cancel = async () => {
      await this.acts.cancel(job);
      // once the question is closed: the button that had the focus goes with the job's end
      setTimeout(() => this.find(job.id)?.focus());
    };
    const says = { go: "Cancel the job", keep: "Let it go on" };
    const withdraw = confirmed("Cancel this job?", job.goal, words, cancel, says);
    this.asked = { id: job.id, withdraw };
  }

  /** Nothing is left to be asked about a job that has ended. */
  withdraw(job) {
    if (this.asked?.id !== job.id) return;
    if (this.asked.withdraw()) {
      this.acts.overtaken(job);
      // the button that had the focus has gone
      setTimeout(() => this.find(job.id)?.focus());
    }
    this.asked = null;
  }
}

function fill(card, job) {
  const open = isOpen(job);
  card.dataset.look = lookOf(job);
  const say = (name, text) => {
    const place = card.querySelector(name);
    if (place.textContent !== text) place.textContent = text;
    return place;
  };
  say(".job-state", stateOf(job));
  say(".job-kind", kindOf(job));
  say(".job-goal", job.goal);
  const doing = doingOf(job);
  say(".job-words", doing).hidden = !doing;
  const facts = factsOf(job);
  say(".job-facts", facts).hidden = !facts;
  const branch = job.branch && [job.branch, job.commit?.slice(0, 10)].filter(Boolean).join(" @ ");
  say(".job-branch code", branch || "");
  card.querySelector(".job-branch").hidden = !branch;
  drawSteps(card.querySelector(".job-steps"), job);
  const cancel = card.querySelector("[data-do=cancel]");
  cancel.hidden = !open;
  cancel.disabled = job.cancel_requested;
  card.querySelector("[data-do=report]").hidden = !job.message_id;
  card.querySelector("[data-do=again]").hidden = open || job.state === "completed";
}

/** Offer to show all of a goal where it is cut. One that is shown whole can be cut again. */
function offerWhole(goal) {
  const isCut = goal.scrollHeight > goal.clientHeight + 1;
  goal.nextElementSibling.hidden = !isCut && !goal.parentElement.hasAttribute("data-whole");
}

function turnWhole(button) {
  const isWhole = button.parentElement.toggleAttribute("data-whole");
  button.setAttribute("aria-expanded", String(isWhole));
  button.textContent = isWhole ? "Show less" : "Show all";
}

function drawSteps(details, job) {
  const calls = job.steps.filter((step) => step.kind === "tool");
  details.hidden = calls.length === 0;
  const count = Math.max(calls.length, job.steps_done);
  details.querySelector("summary").textContent = counted(count, "step");
  details.querySelector("ol").replaceChildren(...calls.map(drawStep));
}
