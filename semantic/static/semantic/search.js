// The search box: what is written is looked for, and each result leads to its message.

import { call, counted } from "../turns/api.js";
import { clone } from "../turns/thread.js";

const PAUSE_MS = 250;
const PLACE = /^#m([1-9]\d{0,18})$/;
// a word that is left out, and "or"
const NO_WORDS = /(?<!\S)-(?:"[^"]*"|\S+)|(?<!\S)or(?!\S)/giu;
const WORD = /[\p{L}\p{N}_]+/gu;
const HEAD_CHARS = 90;

export function start(page, told) {
  new Search(page, told);
  const arrive = () => {
    const found = PLACE.exec(location.hash);
    if (found) lead(page, found[1]);
  };
  addEventListener("hashchange", arrive);
  // the page itself goes to its end first
  setTimeout(arrive);
}

/** Lead to a message of this conversation, however far up it is, and show which it is. */
async function lead(page, id) {
  if (!(await page.lead(id))) {
    page.notice("This message was removed.");
    return;
  }
  const message = document.querySelector(`#thread > [data-id="${CSS.escape(id)}"]`);
  if (message === null || message !== document.activeElement) return; // led elsewhere meanwhile
  for (const other of document.querySelectorAll("[data-led]")) other.removeAttribute("data-led");
  message.setAttribute("data-led", "");
  message.addEventListener("blur", () => message.removeAttribute("data-led"), { once: true });
}

class Search {
  constructor(page, told) {
    this.page = page;
    this.told = told;
    this.dialog = document.getElementById("search");
    this.field = document.getElementById("search-query");
    this.problem = document.getElementById("search-problem");
    this.state = document.getElementById("search-state");
    this.mode = document.getElementById("search-mode");
    this.hits = document.getElementById("search-hits");
    this.hint = document.getElementById("search-hint");
    this.encoder = new TextEncoder();
    // answers to older questions are dropped, in whatever order they come
    this.asked = 0;
    this.shown = null;
    document.getElementById("open-search").addEventListener("click", () => this.open());
    document.getElementById("close-search").addEventListener("click", () => this.dialog.close());
    document.addEventListener("keydown", (event) => this.shortcut(event));
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside it
    });
    this.dialog.addEventListener("keydown", (event) => this.move(event));
    this.dialog.addEventListener("close", () => this.settle());
    this.field.addEventListener("input", () => this.soon());
    document.getElementById("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.look({ again: true });
    });
    this.hits.addEventListener("click", (event) => this.go(event));
  }

  get query() {
    return this.field.value.trim();
  }

  // --- opening, and the keys ---

  open() {
    if (!this.dialog.open) this.dialog.showModal();
    this.field.focus();
    this.field.select();
    if (this.query) this.look({ again: true });
  }

  shortcut(event) {
    if (event.isComposing || event.defaultPrevented) return;
    const isK = (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k";
    const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isWriting(event.target);
    const isBusy = document.querySelector("dialog[open]:not(#search)");
    if ((!isK && !isSlash) || isBusy) return;
    if (isSlash && this.dialog.open) return;
    event.preventDefault();
    this.open();
  }

  /** Up and down go through the results and back to the field. */
  move(event) {
    if (event.key === "Escape" && !event.isComposing) {
      // a search field would only be emptied by it
      event.preventDefault();
      this.dialog.close();
      return;
    }
    if (!["ArrowDown", "ArrowUp"].includes(event.key) || event.isComposing) return;
    const links = [...this.hits.querySelectorAll("a")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement);
    if (at < 0 && (event.key === "ArrowUp" || document.activeElement !== this.field)) return;
    event.preventDefault();
    const to = at + (event.key === "ArrowDown" ? 1 : -1);
    if (to < 0) this.field.focus();
    else links[Math.min(to, links.length - 1)].focus();
  }

  // --- looking ---

  soon() {
    clearTimeout(this.timer);
    this.asked += 1; // what is under way answers another question
    if (!this.query) {
      this.clear();
      return;
    }
    const over = this.encoder.encode(this.query).length - this.told.query_bytes;
    if (over > 0) {
      this.clear();
      this.refuse(`This is too long by ${counted(over, "byte")}.`);
      return;
    }
    this.refuse("");
    this.timer = setTimeout(() => this.look(), PAUSE_MS);
  }

  /** Ask. `again`: also for what is shown already. */
  async look({ again = false } = {}) {
    clearTimeout(this.timer);
    const { query } = this;
    if (!query) {
      this.clear();
      if (again) this.refuse("Say what to look for.");
      return;
    }
    if (this.encoder.encode(query).length > this.told.query_bytes) return; // said already
    if (query === this.shown && !again) {
      this.busy(false);
      return;
    }
    const asked = ++this.asked;
    this.busy(true);
    try {
      const found = await call("GET", `/search?q=${encodeURIComponent(query)}`);
      if (asked === this.asked) this.show(query, found);
    } catch (error) {
      if (asked !== this.asked) return;
      this.clear();
      this.refuse(explained(error));
      if (error.status === 401) this.page.signedOut();
    }
  }

  show(query, { mode, hits }) {
    this.shown = query;
    this.busy(false);
    this.refuse("");
    this.hint.hidden = true;
    this.mode.hidden = mode !== "text";
    this.hits.replaceChildren(...hits.map((hit) => this.drawn(hit, wordsOf(query))));
    this.hits.scrollTop = 0;
    if (!hits.length) this.say(`Nothing found for “${query}”.`);
    else this.say(hits.length === 1 ? "1 message found." : `${hits.length} messages found, the best first.`);
  }

  drawn(hit, words) {
    const item = clone("search-hit");
    const link = item.querySelector("a");
    link.href = `/c/${hit.conversation_id}/#m${hit.message_id}`;
    item.querySelector(".hit-where").textContent = this.where(hit.conversation_id);
    item.querySelector(".hit-words").replaceChildren(...marked(headed(hit.excerpt, words), words));
    return item;
  }

  /** What the conversation is called, as far as this page knows. */
  where(id) {
    if (id === this.page.conversation) return "In this conversation";
    const listed = document.querySelector(`#conversations [data-id="${CSS.escape(id)}"] .conversation-name`);
    return listed?.textContent ?? "An earlier conversation";
  }

  /** In this conversation the page only has to scroll. */
  go(event) {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    if (link.pathname !== location.pathname) return;
    event.preventDefault();
    this.dialog.close();
    history.replaceState(null, "", link.hash);
    lead(this.page, PLACE.exec(link.hash)[1]);
  }

  // --- what is said ---

  busy(is) {
    this.dialog.setAttribute("aria-busy", String(is));
    if (is) this.say("Searching …");
  }

  say(sentence) {
    this.state.textContent = sentence;
  }

  refuse(sentence) {
    if (this.problem.textContent !== sentence) this.problem.textContent = sentence;
    this.field.setAttribute("aria-invalid", String(sentence !== ""));
  }

  clear() {
    this.shown = null;
    this.dialog.setAttribute("aria-busy", "false");
    this.say("");
    this.refuse("");
    this.mode.hidden = true;
    this.hint.hidden = false;
    this.hits.replaceChildren();
  }

  /** Nothing goes on behind a closed dialog; what was found stays for the next look. */
  settle() {
    clearTimeout(this.timer);
    this.asked += 1;
    this.dialog.setAttribute("aria-busy", "false");
    if (this.shown === null) this.clear();
  }
}

function isWriting(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null;
}

function explained(error) {
  if (error.status === 429) return "Too many searches at once. Press Enter to try again.";
  return error.mayPass ? `${error.message} Press Enter to try again.` : error.message;
}

function wordsOf(query) {
  const words = query.replace(NO_WORDS, " ").match(WORD) ?? [];
  return new Set(words.map((word) => word.toLowerCase()));
}

/** The excerpt from a little before its first word on: there is room for three lines. */
function headed(text, words) {
  const flat = text.replace(/\s+/gu, " ").trim();
  for (const match of flat.matchAll(WORD)) {
    if (!words.has(match[0].toLowerCase())) continue;
    if (match.index <= HEAD_CHARS) return flat;
    const from = flat.indexOf(" ", match.index - HEAD_CHARS) + 1;
    return `…${flat.slice(from)}`;
  }
  return flat;
}

/** The text, with the words that were looked for marked. */
function marked(text, words) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(WORD)) {
    if (!words.has(match[0].toLowerCase())) continue;
    const mark = document.createElement("mark");
    mark.textContent = match[0];
    parts.push(text.slice(done, match.index), mark);
    done = match.index + match[0].length;
  }
  return [...parts, text.slice(done)];
}
