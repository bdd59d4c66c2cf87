// A job that ends while nobody looks: a notice on every page of the person, and in its title.
// Where the end can be seen as it happens, by the job's card or its report, a notice would only
// cover what it is about: there the end is spoken, and no more.
//
// Jobs of this conversation are told by the live view. Those of others are asked for now and
// then, more often while one is at work; pages of the same browser tell each other at once.

import { call } from "../turns/api.js";
import { clone } from "../turns/thread.js";
import { endOf, isOpen, lookOf } from "./words.js";

const BUSY_SECONDS = 4;
const IDLE_SECONDS = 25;
const SHOWN_SECONDS = 20;
// On a phone a notice covers what stands at the top of the messages; only the newest is shown.
const SHOWN_SECONDS_NARROW = 8;
const NARROW = matchMedia("(max-width: 760px)");
const MOST = 3;
const SPOKEN_CHARS = 120;

export class Notices {
  /**
   * `lead(job)` shows the report of a job of this conversation, `isInView(job)` says whether its
   * end can be seen without; `elsewhere(jobs)` draws the others.
   */
  constructor(page, { lead, elsewhere, isInView }) {
    this.page = page;
    this.lead = lead;
    this.isInView = isInView;
    this.drawElsewhere = elsewhere;
    this.place = document.getElementById("toasts");
    this.open = new Map();
    this.ended = new Set();
    this.expected = new Set();
    this.askedAbout = new Set();
    // the newest job when it was last asked: null before that, "" when there was none
    this.newest = null;
    this.listed = null;
    this.unseen = 0;
    this.channel = new BroadcastChannel(`holdfast.${page.user}.jobs`);
    this.channel.addEventListener("message", ({ data }) => this.heard(data));
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState !== "visible") return;
      this.look();
      this.seen();
    });
    addEventListener("focus", () => this.seen());
    this.look();
  }

  // --- what has happened ---

  /** A job of this conversation. `isNews`: one nobody knew of has ended just now. */
  show(job, { isNews }) {
    if (isOpen(job)) {
      if (!this.open.has(job.id)) this.tell(job);
      this.open.set(job.id, job);
    } else if (this.open.delete(job.id) || isNews) {
      this.end(job);
      this.tell(job);
    } else {
      this.ended.add(job.id);
    }
    this.list();
  }

  /** Tell the person's other pages. */
  tell(job) {
    const { id, conversation_id, kind, goal, state, error_message, cancel_requested } = job;
    const told = { id, conversation_id, kind, goal, state, error_message, cancel_requested };
    this.channel.postMessage({ ...told, attempts: job.attempts, steps: [] });
  }

  heard(job) {
    if (job.conversation_id === this.page.conversation) return; // the live view tells it
    if (isOpen(job) && !this.ended.has(job.id)) this.open.set(job.id, job);
    else if (!isOpen(job) && this.open.delete(job.id)) this.end(job);
    this.draw();
    this.soon();
  }

  /** Ask what is at work, and what became of what was, or has begun since. */
  async look() {
    clearTimeout(this.timer);
    try {
      await this.catchUp();
      const { jobs } = await call("GET", "/jobs?state=open");
      const now = new Set(jobs.map((job) => job.id));
      for (const job of jobs) {
        if (this.isElsewhere(job) && !this.ended.has(job.id)) this.open.set(job.id, job);
      }
      for (const job of [...this.open.values()]) {
        if (this.isElsewhere(job) && !now.has(job.id)) await this.settle(job.id);
      }
      this.draw();
    } catch (error) {
      if (error.status === 401) return;
      // otherwise asked again soon
    }
    this.soon();
  }

  /** Jobs that began and ended since it was asked last; those at work are asked for next. */
  async catchUp() {
    const isFirst = this.newest === null;
    const after = this.newest ? `after=${this.newest}` : "";
    const { jobs } = await call("GET", `/jobs?${isFirst ? "limit=1" : after}`);
    this.newest = jobs[0]?.id ?? this.newest ?? "";
    for (const job of jobs.reverse()) {
      if (!this.isElsewhere(job) || this.ended.has(job.id)) continue;
      if (isOpen(job)) {
        // it may have ended before those at work are asked for, and nobody would ask again
        this.open.set(job.id, job);
      } else if (!isFirst) {
        this.open.delete(job.id);
        this.end(job);
      }
    }
  }

  async settle(id) {
    try {
      const job = await call("GET", `/jobs/${id}`);
      if (!isOpen(job) && this.open.delete(id)) this.end(job);
    } catch (error) {
      if (error.status !== 404) throw error;
      this.open.delete(id); // gone with its conversation
    }
  }

  soon() {
    clearTimeout(this.timer);
    const isBusy = [...this.open.values()].some((job) => this.isElsewhere(job));
    if (document.hidden && !isBusy) return; // until it is looked at again
    this.timer = setTimeout(() => this.look(), (isBusy ? BUSY_SECONDS : IDLE_SECONDS) * 1000);
  }

  /** The conversation is gone: nothing is said of its jobs any more. */
  forget() {
    for (const job of [...this.open.values()]) {
      if (this.isElsewhere(job)) continue;
      this.open.delete(job.id);
      this.ended.add(job.id);
    }
    for (const toast of [...this.place.children]) {
      if (toast.dataset.conversation === this.page.conversation) this.hide(toast);
    }
    this.draw();
  }

  isElsewhere(job) {
    return job.conversation_id !== this.page.conversation;
  }

  draw() {
    this.drawElsewhere([...this.open.values()].filter((job) => this.isElsewhere(job)));
    this.list();
  }

  /** Have the list mark where jobs are at work, when that may have changed since it was drawn. */
  list() {
    const now = [...this.open.keys()].sort().join();
    if (this.listed !== null && this.listed !== now) this.page.relist();
    this.listed = now;
  }

  // --- notices ---

  /** Somebody has just cancelled this job here: its end needs no notice. */
  expect(id) {
    this.expected.add(id);
  }

  /** Somebody was asked here whether to cancel this job: that it has ended needs a notice. */
  overtaken(id) {
    this.askedAbout.add(id);
  }

  async end(job) {
    if (this.ended.has(job.id)) return;
    this.ended.add(job.id);
    const isCancelled = job.state === "cancelled";
    if (isCancelled && this.expected.has(job.id)) {
      this.page.announce(`${endOf(job)}.`);
      return;
    }
    if (document.visibilityState !== "visible" || !document.hasFocus()) {
      this.unseen += 1;
      this.page.mark(this.unseen);
    }
    await null; // until the page has drawn all that came with this
    const isOvertaken = this.askedAbout.has(job.id) || this.expected.has(job.id);
    if (!isOvertaken && this.isSeen(job)) {
      this.page.announce(`${endOf(job)}. ${job.goal.slice(0, SPOKEN_CHARS)}`);
      return;
    }
    const rest = isOvertaken && !isCancelled ? "There is nothing left to cancel. " : "";
    this.put(job, `${endOf(job)}. ${rest}`);
  }

  /** Whether the end of a job happens before somebody's eyes. */
  isSeen(job) {
    const isVisible = document.visibilityState === "visible";
    return isVisible && !this.isElsewhere(job) && this.isInView(job);
  }

  put(job, what) {
    const toast = clone("toast");
    toast.dataset.look = lookOf(job);
    toast.dataset.conversation = job.conversation_id;
    toast.querySelector(".toast-what").textContent = what;
    toast.querySelector(".toast-goal").textContent = job.goal;
    const link = toast.querySelector(".toast-lead");
    link.href = `/c/${job.conversation_id}/`;
    if (this.isElsewhere(job)) {
      link.textContent = "Go there";
    } else {
      link.textContent = "Show report";
      link.addEventListener("click", (event) => {
        event.preventDefault();
        this.hide(toast);
        this.lead(job);
      });
    }
    toast.querySelector("button").addEventListener("click", () => {
      this.hide(toast);
      document.getElementById("words").focus();
    });
    this.place.append(toast);
    while (this.place.children.length > MOST) this.place.firstElementChild.remove();
    this.expire(toast);
  }

  /** A notice goes by itself, but not while nobody can see it or somebody is at it. */
  expire(toast) {
    let left = NARROW.matches ? SHOWN_SECONDS_NARROW : SHOWN_SECONDS;
    const timer = setInterval(() => {
      const isHeld = document.hidden || toast.matches(":hover, :focus-within");
      if (!isHeld) left -= 1;
      if (left <= 0 || !toast.isConnected) {
        clearInterval(timer);
        this.hide(toast);
      }
    }, 1000);
  }

  hide(toast) {
    toast.remove();
  }

  seen() {
    this.unseen = 0;
    this.page.mark(0);
  }
}
