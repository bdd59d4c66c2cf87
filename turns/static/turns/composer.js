// The message box, and what was sent from it that nobody has taken yet.
//
// Sending empties the box at once. The message then waits in `unsent`, with the key it will be
// sent under every time, until the service has it: it survives a reload and a lost network, and
// is never asked twice. What the service refuses comes back into the box.

import { call, counted, newKey, Problem } from "./api.js";
import { showsSomething } from "./blanks.js";
import { clone, isOpen } from "./thread.js";

const RETRY_SECONDS = [1, 2, 4, 8, 15];
// Enter pressed twice is not an empty message.
const DOUBLE_MS = 600;
const NEW = "new";

export class Composer {
  /** `page` gives: conversation, turn, and is told `began(conversation)`, `took(turn)`. */
  constructor(page, kept) {
    this.page = page;
    this.kept = kept;
    this.form = document.getElementById("composer");
    this.box = document.getElementById("words");
    this.problem = document.getElementById("problem");
    this.stopButton = document.getElementById("stop");
    this.pending = document.getElementById("pending");
    this.items = kept.unsent(this.place);
    this.isSending = false;
    this.isOver = false;
    this.failures = 0;
    this.sentAt = -Infinity;
    this.drawn = "";
    this.encoder = new TextEncoder();

    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("input", () => this.changed());
    this.stopButton.addEventListener("click", () => this.stop());
    this.pending.addEventListener("click", (event) => {
      if (event.target.closest("[data-do=withdraw]")) {
        this.withdraw(event.target.closest(".message").dataset.key);
      }
    });
    addEventListener("pagehide", () => this.keep());
    addEventListener("online", () => this.flush());
    if (!this.box.value) this.box.value = kept.draft(this.place);
    this.changed();
    this.draw();
    this.flush();
  }

  get place() {
    return this.page.conversation ?? NEW;
  }

  // --- the box ---

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // on a phone Enter is the only way to a new line
    if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.send();
  }

  changed() {
    this.keep();
    this.box.style.height = "auto";
    this.box.style.height = `${this.box.scrollHeight + 2}px`;
    const over = this.encoder.encode(this.box.value).length - this.page.messageBytes;
    if (over > 0) this.refuse(`This is too long by ${counted(over, "byte")}.`);
    else this.refuse("");
  }

  refuse(sentence) {
    if (this.problem.textContent !== sentence) this.problem.textContent = sentence;
    this.box.toggleAttribute("aria-invalid", sentence !== "");
  }

  fill(text) {
    this.box.value = text;
    this.changed();
    this.box.focus();
    this.box.setSelectionRange(text.length, text.length);
  }

  /** Give words back; what was typed meanwhile stays behind them. */
  giveBack(text, sentence) {
    const typed = this.box.value.trim();
    this.fill(typed ? `${text}\n\n${this.box.value}` : text);
    this.refuse(sentence);
  }

  // --- sending ---

  send() {
    if (this.isOver) return;
    const text = this.box.value;
    if (!showsSomething(text)) {
      if (performance.now() - this.sentAt > DOUBLE_MS) this.refuse("Write something first.");
      this.box.focus();
      return;
    }
    if (this.encoder.encode(text).length > this.page.messageBytes) return;
    this.box.value = "";
    this.changed();
    this.box.focus();
    this.post(text);
  }

  /** Send `text` as a new message of the person's, whatever was sent before. */
  post(text) {
    this.sentAt = performance.now();
    this.items.push({ key: newKey(), room: newKey(), text });
    this.failures = 0;
    this.keep();
    this.draw();
    this.page.sent();
    this.flush();
  }

  /** Send what waits, one after another: a conversation has one answer at a time. */
  async flush() {
    clearTimeout(this.timer);
    const item = this.items[0];
    // one that may have arrived is asked about at once: the same key never asks twice
    const hasToWait = isOpen(this.page.turn) && !item?.tried;
    if (this.isSending || !item || hasToWait) {
      this.draw();
      return;
    }
    this.isSending = item.tried = true;
    this.keep();
    this.draw();
    try {
      const path = `/conversations/${await this.room(item.room)}/turns`;
      const turn = await call("POST", path, { text: item.text, client_key: item.key });
      this.failures = 0;
      this.drop(item.key);
      this.page.took(turn);
    } catch (error) {
      this.failed(item, error);
    } finally {
      this.isSending = false;
      this.draw();
    }
  }

  /** Return this conversation's id; where there is none yet, it is made, once. */
  async room(key, title = "") {
    if (this.page.conversation !== null) return this.page.conversation;
    this.making ??= call("POST", "/conversations", { title, client_key: key });
    try {
      const made = await this.making;
      if (this.page.conversation === null) this.moveTo(made);
      return made.id;
    } finally {
      this.making = null;
    }
  }

  failed(item, error) {
    if (!(error instanceof Problem)) throw error;
    if (this.isOver) return;
    if (error.code === "turn_in_progress" && isOpen(this.page.turn)) {
      item.tried = item.arrived = false;
    } else if (error.mayPass && error.code !== "paused") {
      const seconds = RETRY_SECONDS[Math.min(this.failures, RETRY_SECONDS.length - 1)];
      this.failures += 1;
      this.timer = setTimeout(() => this.flush(), seconds * 1000);
    } else if (error.status === 401) {
      this.page.signedOut();
    } else {
      const wait = error.retryAfter ? ` Try again in ${counted(error.retryAfter, "second")}.` : "";
      this.drop(item.key);
      this.giveBack(item.text, error.message + wait);
      this.page.refused();
    }
  }

  /** An answer has ended. What waits is sent, unless the answer broke off: then ask first. */
  ended(turn) {
    const waiting = this.items.filter((item) => !item.tried);
    if (!waiting.length || turn.state === "completed" || turn.state === "cancelled") {
      this.flush();
      return;
    }
    const text = waiting.map((item) => item.text).join("\n\n");
    this.items = this.items.filter((item) => item.tried);
    this.keep();
    this.flush();
    this.giveBack(text, "This was not sent, because the answer before it broke off.");
  }

  /** The live view shows a message: it may be the one whose acceptance is still on its way. */
  saw(text) {
    const item = this.items[0];
    if (item?.tried && item.text === text) item.arrived = true;
    this.draw();
  }

  withdraw(key) {
    const item = this.items.find((one) => one.key === key);
    if (!item) return;
    this.drop(key);
    this.draw();
    this.giveBack(item.text, "");
  }

  drop(key) {
    this.items = this.items.filter((item) => item.key !== key);
    this.keep();
  }

  moveTo(conversation) {
    this.kept.forgetPlace(NEW);
    this.page.began(conversation);
    this.keep();
  }

  /** The conversation is gone, and what was to be said in it. */
  forget() {
    this.items = [];
    this.box.value = "";
    this.keep();
  }

  /** Nobody hears anything here any more. What was to be said stays, to be read and copied. */
  finish() {
    clearTimeout(this.timer);
    this.kept.forgetPlace(this.place);
    this.isOver = true;
    const unsaid = [...this.items.map((item) => item.text), this.box.value];
    this.items = [];
    this.box.value = unsaid.filter((text) => text.trim()).join("\n\n");
    this.box.readOnly = true;
    this.box.placeholder = "Nothing can be sent here any more";
    document.getElementById("send").disabled = true;
    this.changed();
  }

  keep() {
    if (this.isOver) return;
    this.kept.keepUnsent(this.place, this.items);
    this.kept.keepDraft(this.place, this.box.value);
  }

  async stop() {
    const { turn } = this.page;
    if (!isOpen(turn)) return;
    this.box.focus();
    try {
      await call("POST", `/turns/${turn.id}/cancel`);
    } catch (error) {
      this.refuse(`It could not be stopped. ${error.message}`);
    }
  }

  // --- drawing ---

  draw() {
    const { turn } = this.page;
    const open = isOpen(turn);
    this.stopButton.hidden = !open;
    this.stopButton.disabled = open && turn.cancel_requested;
    const unseen = this.items.filter((item) => !item.arrived);
    const drawn = unseen.map((item) => [item.key, item.text, ...this.stateOf(item)]);
    const now = JSON.stringify(drawn);
    if (now === this.drawn) return;
    this.drawn = now;
    this.pending.replaceChildren(...drawn.map((one) => element(...one)));
  }

  /** Return what is said of a waiting message, and whether it can be taken back. */
  stateOf(item) {
    if (!item.tried) return ["Waits for the answer before it.", true];
    if (!this.failures) return ["Sending …", false];
    // it may have arrived: then it would be shown as soon as the service can be reached
    return ["Not sent yet. Trying again …", this.failures > 2];
  }
}

function element(key, text, state, isWithdrawable) {
  const made = clone("unsent");
  made.dataset.key = key;
  made.querySelector(".words").textContent = text;
  made.querySelector(".unsent-state").textContent = state;
  made.querySelector("[data-do=withdraw]").hidden = !isWithdrawable;
  return made;
}
