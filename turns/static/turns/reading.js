// Where a person reads: at the end of the conversation, or at a message further up.
//
// The end is live: whatever happens goes there, shown or not. A stretch around a message that is
// not loaded is shown in place of it, as a list of its own, so that nothing that happens seems
// to follow it. Where it has grown down to the end, it becomes part of it.

import { ask } from "./api.js";
import { isNewer } from "./thread.js";

const NEAR_PIXELS = 80;
const LEAD_PIXELS = 12;
const SIDES = {
  older: { asks: "before", leads: "next", margin: "400px 0px 0px", what: "Earlier messages" },
  newer: { asks: "after", leads: "previous", margin: "0px 0px 400px", what: "Later messages" },
};

/** Whether more of an element than a sliver is within the part that scrolls it. */
export function isWithin(element, scroller) {
  const { top, bottom } = element.getBoundingClientRect();
  const edge = scroller.getBoundingClientRect();
  return bottom > edge.top + LEAD_PIXELS && top < edge.bottom - LEAD_PIXELS;
}

export class Reading {
  /** `page` gives `conversation`, and is told what to say; `end` is the thread that is live. */
  constructor(page, end) {
    this.page = page;
    this.end = end;
    this.shown = end;
    this.isFollowing = true;
    this.isOver = false;
    // answers to earlier wishes are dropped, in whatever order they come
    this.led = 0;
    this.view = document.getElementById("view");
    this.toLatest = document.getElementById("to-latest");
    this.view.addEventListener("scroll", () => this.scrolled());
    new ResizeObserver(() => this.stay()).observe(this.view);
    this.toLatest.addEventListener("click", () => {
      this.toEnd();
      document.getElementById("words").focus();
    });
    this.watches = Object.entries(SIDES).map(([side, { margin }]) => {
      const more = (seen) => seen.at(-1).isIntersecting && this.more(side);
      const watch = new IntersectionObserver(more, { root: this.view, rootMargin: margin });
      return [document.getElementById(side), watch];
    });
    this.look();
  }

  /** Whether what is shown is not the end. */
  get isAway() {
    return this.shown !== this.end;
  }

  /** Whether some of a message can be read right now. */
  isInView(id) {
    const message = this.shown.find(id);
    return message !== null && isWithin(message, this.view);
  }

  // --- moving ---

  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.view;
    this.isFollowing = !this.isAway && scrollHeight - scrollTop - clientHeight < NEAR_PIXELS;
    this.toLatest.hidden = this.isFollowing;
  }

  /** Stay at the end, if that is where one is. */
  stay() {
    if (this.isFollowing) this.view.scrollTop = this.view.scrollHeight;
  }

  draw() {
    this.stay();
    this.toLatest.hidden = this.isFollowing;
    const hasMore = this.isAway && this.end.newest !== this.left;
    this.toLatest.querySelector("span").textContent = hasMore ? "New messages" : "Latest";
  }

  /** Show the end, and follow what happens there. */
  toEnd() {
    this.led += 1;
    this.show(this.end);
    this.isFollowing = true;
    this.draw();
  }

  /** Lead to a message, wherever in the past it is. False when it is gone. */
  async lead(id) {
    const led = ++this.led;
    if (!this.shown.find(id) && !this.end.find(id)) {
      // what is younger than the oldest one here, and not here, is gone
      if (this.end.older === null || !isNewer(this.end.oldest, id)) return false;
      try {
        const found = await this.ask("around", id);
        if (led !== this.led) return true;
        this.open(found);
      } catch (error) {
        if (error.status === 404) return false;
        this.page.notice(`The message could not be loaded. ${error.message}`);
        return true;
      }
    }
    if (!this.shown.find(id)) this.show(this.end);
    const message = this.shown.find(id);
    if (!message) return false;
    this.isFollowing = false;
    // not scrollIntoView: it would also move the page itself, whose header then is out of sight
    const top = message.getBoundingClientRect().top - this.view.getBoundingClientRect().top;
    this.view.scrollTop += top - LEAD_PIXELS;
    message.focus({ preventScroll: true });
    this.draw();
    return true;
  }

  /** Show these messages, which follow one another, in place of the end. */
  open(found) {
    if (!this.isAway) this.left = this.end.newest;
    this.isFollowing = false;
    const stretch = this.end.beside();
    stretch.older = found.next;
    this.show(stretch);
    this.add(stretch, "newer", found);
  }

  show(stretch) {
    if (this.shown === stretch) return;
    this.shown.list.replaceWith(stretch.list);
    this.shown = stretch;
    this.view.toggleAttribute("data-away", this.isAway);
    for (const [sign] of this.watches) sign.textContent = "";
    this.look();
  }

  /** There is nothing more to load: what is here is all that is left. */
  finish() {
    this.isOver = true;
    for (const [sign] of this.watches) sign.textContent = "";
    this.end.finish();
    if (this.isAway) this.shown.finish();
  }

  // --- loading ---

  ask(place, id) {
    return ask("GET", `/c/${this.page.conversation}/messages/?${place}=${id}`);
  }

  /** Look whether more has to be loaded: asked anew, an observer says what is in view. */
  look() {
    for (const [sign, watch] of this.watches) {
      watch.unobserve(sign);
      watch.observe(sign);
    }
  }

  /** Load what comes next on one side. One at a time: afterwards both sides are looked at. */
  async more(side) {
    const stretch = this.shown;
    if (this.isOver || stretch.isLoading || stretch[side] === null) return;
    stretch.isLoading = true;
    const sign = document.getElementById(side);
    const { asks, what } = SIDES[side];
    sign.textContent = `Loading ${what.toLowerCase()} …`;
    try {
      this.place(stretch, side, stretch[side], await this.ask(asks, stretch[side]));
    } catch (error) {
      if (stretch === this.shown && !this.isOver) {
        const again = document.createElement("button");
        again.type = "button";
        again.className = "link";
        again.textContent = "Try again";
        again.addEventListener("click", () => this.more(side));
        sign.replaceChildren(`${what} could not be loaded. ${error.message} `, again);
      }
      return;
    } finally {
      stretch.isLoading = false;
    }
    this.look();
  }

  place(stretch, side, asked, found) {
    const isShown = stretch === this.shown;
    const below = this.view.scrollHeight - this.view.scrollTop;
    // unless it was emptied meanwhile, or left for good
    const isLeft = !isShown && stretch !== this.end;
    if (stretch[side] === asked && !isLeft) this.add(stretch, side, found);
    if (!isShown) return;
    document.getElementById(side).textContent = "";
    if (side === "older") this.view.scrollTop = this.view.scrollHeight - below;
  }

  /** Add what comes next on one side. The end alone is told what happens: nothing that stands
   * there is taken from elsewhere. */
  add(stretch, side, found) {
    const { oldest } = this.end;
    const isBefore = (message) => oldest === null || isNewer(oldest, message.id);
    const further = found.messages.filter(isBefore);
    for (const message of further) stretch.show(message);
    stretch[side] = found[SIDES[side].leads];
    const meets = further.length < found.messages.length || stretch.newer === null;
    if (stretch !== this.end && meets) this.join(stretch);
  }

  /** The stretch that is shown reaches down to the end: from now on it is the end. */
  join(stretch) {
    this.end.follow(stretch);
    this.shown = this.end;
    this.view.removeAttribute("data-away");
    this.draw();
  }
}
