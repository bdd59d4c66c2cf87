// Delegated jobs on a conversation's page: what they do, how they end, and how to start one.

import { call, newKey, Problem } from "../turns/api.js";
import { explained, Form, start as startJob } from "./form.js";
import { Notices } from "./notices.js";
import { Rail } from "./rail.js";
import { isOpen, kindOf } from "./words.js";

export function start(page, told) {
  const overtaken = (job) => notices.overtaken(job.id);
  const rail = new Rail(page, { cancel, report, again, overtaken });
  const isInView = ({ id, message_id }) => rail.isInView(id) || page.isInView(message_id);
  const notices = new Notices(page, { lead: report, elsewhere, isInView });
  const keys = new Map();
  const form = new Form(page, told, {
    started(job) {
      if (page.isGone) return;
      took(job);
      page.announce(`${kindOf(job)} has been started.`);
    },
  });
  let hasBegun = false;

  page.onFrame("snapshot", (frame) => showAll(frame.jobs ?? []));
  page.onFrame("job", (job) => {
    rail.show(job);
    // what had ended before is never sent as a frame of its own
    notices.show(job, { isNews: true });
  });
  page.onFrame("message", () => rail.count());
  page.onAgain("job", again);
  page.onGone(() => {
    form.finish();
    rail.finish();
    notices.forget();
  });
  if (page.snapshot) showAll(page.snapshot.jobs ?? []);

  function showAll(jobs) {
    rail.showAll(jobs);
    for (const job of jobs) notices.show(job, { isNews: hasBegun });
    hasBegun = true;
  }

  /** The service has the job; the live view may have told it already. */
  function took(job) {
    if (page.isGone) return;
    const known = rail.jobs.get(job.id);
    if (!known) {
      const seen = { ...job, computer: null, steps_done: 0, elapsed_seconds: 0 };
      rail.show(seen);
      notices.show(seen, { isNews: false });
    }
    if (rail.isShown) rail.lead(job.id);
    page.relist();
  }

  async function cancel(job) {
    notices.expect(job.id);
    const asked = await call("POST", `/jobs/${job.id}/cancel`);
    const known = rail.jobs.get(job.id);
    // what has ended is told by the live view, together with its report
    if (isOpen(asked) && known) rail.show({ ...known, cancel_requested: true });
  }

  async function report(job) {
    rail.makeWay();
    const id = rail.jobs.get(job.id)?.message_id ?? job.message_id;
    if (!id || !(await page.lead(id))) page.notice("This report was removed.");
  }

  /** Ask for the same once more: another job, whatever became of the first. */
  async function again(id, button) {
    const key = keys.get(id) ?? newKey();
    keys.set(id, key);
    button.disabled = true;
    try {
      const { kind, goal, context, computer_id, agent, cwd, wall_clock_seconds } = await call(
        "GET",
        `/jobs/${id}`,
      );
      const ask = { kind, goal, context, agent, cwd, wall_clock_seconds };
      if (computer_id) ask.computer_id = computer_id;
      const job = await startJob(page, ask, key, key);
      keys.delete(id);
      took(job);
      page.announce(`${kindOf(job)} has been started again.`);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (!error.mayPass) keys.delete(id);
      page.notice(`It was not started. ${explained(error)}`);
    } finally {
      button.disabled = false;
    }
  }

  function elsewhere(jobs) {
    const section = document.getElementById("jobs-elsewhere");
    section.hidden = jobs.length === 0;
    section.querySelector("ul").replaceChildren(
      ...jobs.map((job) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = `/c/${job.conversation_id}/`;
        link.dir = "auto";
        link.textContent = job.goal;
        item.append(link, ` ${kindOf(job)}`);
        return item;
      }),
    );
  }
}
