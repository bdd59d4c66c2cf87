// Messages as elements: cloned from the page's templates, filled from the server's objects.

const OPEN = new Set(["queued", "running"]);

export function isOpen(turn) {
  return turn !== null && OPEN.has(turn.state);
}

/** Whether id `a` is younger than `b`. They may be too long for numbers. */
export function isNewer(a, b) {
  return a.length === b.length ? a > b : a.length > b.length;
}

export class Thread {
  constructor(list, { cutCodes, onAction }) {
    this.list = list;
    this.cutCodes = new Set(cutCodes);
    this.onAction = onAction;
    this.turn = null;
    this.texts = new Map();
    // before and after which ids there is more than is loaded, null where there is not
    this.older = null;
    this.newer = null;
    this.isLoading = false;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-do]");
      if (button) onAction(button.dataset.do, button.closest(".message"), button);
    });
  }

  find(id) {
    return this.list.querySelector(`:scope > [data-id="${CSS.escape(id)}"]`);
  }

  answerTo(turnId) {
    return this.list.querySelector(`:scope > .answer[data-turn="${CSS.escape(turnId)}"]`);
  }

  get oldest() {
    return this.list.firstElementChild?.dataset.id ?? null;
  }

  get newest() {
    return this.list.lastElementChild?.dataset.id ?? null;
  }

  /** An empty one, to be shown in its place. */
  beside() {
    const { cutCodes, onAction } = this;
    return new Thread(this.list.cloneNode(false), { cutCodes, onAction });
  }

  /** Go on where `past` ends, in its list: what is shown there stays as it is. */
  follow(past) {
    past.list.append(...this.list.children);
    for (const [id, text] of this.texts) past.texts.set(id, text);
    this.list = past.list;
    this.texts = past.texts;
    this.older = past.older;
  }

  textOf(element) {
    return this.texts.get(element.dataset.id) ?? element.querySelector(".words").textContent;
  }

  /** The words of the question a turn answers, null when they are not shown here. */
  questionOf(turnId) {
    const element = this.list.querySelector(`.question[data-turn="${CSS.escape(turnId)}"]`);
    return element ? this.textOf(element) : null;
  }

  // --- frames ---

  /** Show a conversation as it is. What was loaded of its past stays where it still joins. */
  snapshot(messages, turn) {
    this.turn = turn;
    const oldest = messages.at(-1)?.id;
    const joins = oldest !== undefined && this.find(oldest) !== null;
    const shown = new Set(messages.map((message) => message.id));
    for (const element of [...this.list.children]) {
      const isOlder = oldest !== undefined && isNewer(oldest, element.dataset.id);
      if (!shown.has(element.dataset.id) && !(joins && isOlder)) this.remove(element);
    }
    for (const message of [...messages].reverse()) this.show(message);
    if (turn) this.showTurn(turn);
    return joins;
  }

  /** Add or replace a message, in its place. */
  show(message) {
    let element = this.find(message.id);
    if (!element) {
      element = clone(message.role === "user" ? "question" : "answer");
      element.dataset.id = message.id;
      const after = [...this.list.children].find((other) =>
        isNewer(other.dataset.id, message.id),
      );
      this.list.insertBefore(element, after ?? null);
    }
    element.dataset.turn = message.turn_id ?? "";
    element.dataset.look = this.look(message);
    this.texts.set(message.id, message.text ?? "");
    const words = element.querySelector(".words");
    if (message.html) {
      words.classList.remove("plain");
      words.innerHTML = message.html; // rendered and made safe by the server
      addCopyButtons(words);
    } else {
      if (message.role !== "user") words.classList.add("plain");
      words.textContent = message.text ?? "";
    }
    if (message.role === "user") {
      element.querySelector(".edited").hidden = !message.edited_at;
    } else {
      element.querySelectorAll(".reason").forEach((reason) => {
        reason.textContent = message.error_message ?? "";
      });
      showSteps(element, message.steps ?? []);
      if (message.about) showAbout(element, message.about);
    }
    return element;
  }

  /** Add live text to an answer. False when that answer is not here. */
  append(turnId, text) {
    const element = this.answerTo(turnId);
    if (!element) return false;
    const words = element.querySelector(".words");
    if (!words.firstChild) words.append("");
    words.firstChild.appendData(text);
    this.texts.set(element.dataset.id, (this.texts.get(element.dataset.id) ?? "") + text);
    return true;
  }

  /** Show how far a turn is. False when its answer is not here. */
  showTurn(turn) {
    if (this.turn && isNewer(this.turn.id, turn.id)) return true;
    this.turn = turn;
    const element = this.answerTo(turn.id);
    if (!element) return false;
    if (isOpen(turn)) element.dataset.look = turn.cancel_requested ? "stopping" : turn.state;
    showSteps(element, turn.steps.filter((step) => step.kind === "tool"));
    return true;
  }

  /** Nothing that is shown here goes on any more. */
  finish() {
    this.turn = null;
    const going = ["queued", "running", "stopping"].map((look) => `[data-look=${look}]`);
    for (const answer of this.list.querySelectorAll(`:scope > :is(${going})`)) {
      answer.dataset.look = "gone";
    }
  }

  remove(element) {
    this.texts.delete(element.dataset.id);
    element.remove();
  }

  /** What a message looks like; `_look` in views.py says the same. */
  look(message) {
    const { turn } = this;
    if (message.state === "streaming") {
      if (!turn || turn.id !== message.turn_id) return "queued";
      return turn.cancel_requested ? "stopping" : turn.state;
    }
    if (message.state === "failed" && this.cutCodes.has(message.error_code)) return "cut";
    return message.state;
  }
}

export function clone(template) {
  return document.getElementById(template).content.firstElementChild.cloneNode(true);
}

/** What the message is about, where it answers no question: a job it reports on. */
function showAbout(element, about) {
  element.dataset.about = about.type;
  element.dataset.aboutId = about.id;
  element.dataset.aboutState = about.state;
  element.querySelector(".about-label").textContent = about.label;
  element.querySelector(".about-state").textContent = inWords(about.state);
  element.querySelector(".about-title").textContent = about.title;
}

function showSteps(element, steps) {
  element.querySelector(".steps").replaceChildren(...steps.map(drawStep));
}

export function drawStep(step) {
  const item = clone("step");
  item.dataset.state = step.state;
  item.querySelector(".step-name").textContent = inWords(step.name);
  item.querySelector(".step-state").textContent = step.error_code
    ? `${step.state}: ${inWords(step.error_code)}`
    : step.state;
  return item;
}

export function inWords(name) {
  return name.replaceAll("_", " ");
}

/** Give every block of code its language and a button that copies it. */
export function addCopyButtons(words) {
  for (const block of words.querySelectorAll("pre")) {
    const code = block.querySelector("code");
    const language = /(?:^| )language-(\S+)/.exec(code?.className ?? "")?.[1] ?? "";
    const head = document.createElement("div");
    head.className = "code-head";
    const name = document.createElement("span");
    name.textContent = language;
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.do = "copy-code";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    head.append(name, button);
    const frame = document.createElement("div");
    frame.className = "code";
    block.replaceWith(frame);
    block.tabIndex = 0; // it scrolls, so the keyboard has to reach it
    frame.append(head, block);
  }
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // no permission, or plain HTTP from another machine
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.dataset.done = "";
  setTimeout(() => delete button.dataset.done, 1600);
}
