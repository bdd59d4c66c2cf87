// One conversation: what the server has rendered, kept up to date.

import { call } from "./api.js";
import { Composer } from "./composer.js";
import { withdrawn } from "./confirm.js";
import { Conversations, startDrawer } from "./conversations.js";
import { correct, remove } from "./corrections.js";
import { Kept } from "./kept.js";
import { Live } from "./live.js";
import { Reading } from "./reading.js";
import { copy, isOpen, Thread } from "./thread.js";

const TOLD = JSON.parse(document.getElementById("told").textContent);
const SPOKEN_CHARS = 600;
const MISSING = "A part of this page could not be loaded. Reload it to try again.";
const STATES = {
  idle: "",
  connecting: "Connecting",
  live: "Live",
  reconnecting: "Reconnecting",
  offline: "Offline",
  "signed-out": "Signed out",
  gone: "Gone",
};
const ENDS = {
  completed: "Answer: ",
  failed: "The answer failed. ",
  cancelled: "The answer was stopped. ",
  interrupted: "The answer was interrupted. ",
};

const welcome = document.getElementById("welcome");
const connection = document.getElementById("connection");
const announcer = document.getElementById("announcer");
const notice = document.getElementById("notice");

/** What panels and the parts below may use. */
const page = {
  user: TOLD.user,
  conversation: TOLD.conversation,
  messageBytes: TOLD.messageBytes,
  /** The conversation was removed: nothing here goes on or can be begun. */
  isGone: false,
  /** What the page began with, null for a conversation that does not exist yet. */
  snapshot: TOLD.snapshot,
  get turn() {
    return thread.turn;
  },
  get kept() {
    return kept;
  },
  began,
  took,
  sent,
  refused: show,
  renamed,
  removed,
  listed: () => renamed(conversations.nameOf(page.conversation)),
  relist: () => conversations.refresh(),
  announce,
  notice: warn,
  signedOut: () => connected("signed-out"),
  /** Lead to a message, wherever in the past it is. False when it is gone. */
  lead: (id) => reading.lead(id),
  /** Whether some of a message can be read right now. */
  isInView: (id) => reading.isInView(id),
  /** The conversation's id; `key` makes one where there is none yet. */
  room: (key, title) => composer.room(key, title),
  /** How many things happened that nobody has seen: said in the window's title. */
  mark,
  /** Whether something else than messages stands here: then nobody has to be welcomed. */
  occupy,
  /** `act(frame)` is called for each frame of this type, after what is done already. */
  onFrame: (type, act) => handlers.set(type, [...(handlers.get(type) ?? []), act]),
  /** `act()` is called when the conversation is gone. */
  onGone: (act) => goers.push(act),
  /** `act(id, button)` is called for "Start again" below what a message is about. */
  onAgain: (type, act) => agains.set(type, act),
};

const handlers = new Map([
  ["snapshot", [snapshot]],
  ["message", [message]],
  ["text", [(frame) => thread.append(frame.turn_id, frame.text)]],
  ["turn", [turn]],
]);
const agains = new Map();
const goers = [];
let name = document.getElementById("title").textContent;
let marked = 0;
let isOccupied = false;
// what is said below the messages unless something else is, and until when that is
let standing = [];
let warned = 0;
const kept = new Kept(TOLD.user);
const thread = new Thread(document.getElementById("thread"), {
  cutCodes: TOLD.cutCodes,
  onAction: act,
});
const reading = new Reading(page, thread);

if (TOLD.snapshot) snapshot(TOLD.snapshot);
const live = new Live({ onFrame: apply, onState: connected });
const composer = new Composer(page, kept);
const conversations = new Conversations(page, kept);
startDrawer();
// No frame may come before everybody who wants it is there.
const ready = Promise.all(TOLD.panels.map(begin));
if (page.conversation) ready.then(() => live.start(page.conversation, TOLD.snapshot.cursor));
listens(":not([data-panel])");
show();
if (matchMedia("(pointer: fine)").matches) composer.box.focus();

/** Start a panel. The page does without one whose script cannot be loaded. */
async function begin({ key, script, told }) {
  try {
    (await import(script)).start(page, told);
    listens(`[data-panel="${CSS.escape(key)}"]`);
  } catch (error) {
    console.error(error);
    warn(MISSING);
  }
}

/** Enable the controls of these parts, which are served disabled: from now on somebody listens. */
function listens(parts) {
  for (const part of document.querySelectorAll(`.waits${parts}`)) part.disabled = false;
}

// --- frames ---

/** Apply a frame. False when only a snapshot can help. */
function apply(frame) {
  const done = (handlers.get(frame.type) ?? []).map((handle) => handle(frame));
  show();
  return !done.includes(false);
}

function snapshot(frame) {
  const joins = thread.snapshot(frame.messages, frame.turn);
  if (!joins || thread.older === null) thread.older = frame.next;
  renamed(frame.conversation.title);
  frame.messages.forEach(completed);
}

function message(frame) {
  thread.show(frame);
  if (frame.role === "user") composer.saw(frame.text);
  completed(frame);
}

function turn(frame) {
  const before = thread.turn;
  const found = thread.showTurn(frame);
  const wasOpen = before === null || before.id !== frame.id || isOpen(before);
  if (wasOpen && !isOpen(frame)) ended(frame);
  return found;
}

function ended(turn) {
  const text = thread.answerTo(turn.id)?.querySelector(".words").innerText ?? "";
  const words = turn.state === "completed" ? text.slice(0, SPOKEN_CHARS) : turn.error_message;
  announce(ENDS[turn.state] + (words ?? ""));
  composer.ended(turn);
  conversations.refresh();
}

/** What is too large for a frame comes without its HTML, or without its words: fetch it. */
async function completed({ id, role, state, text, html }) {
  const isWhole = role === "user" || state === "streaming" || text === "" || html !== null;
  if ((isWhole && text !== null) || page.isGone) return;
  try {
    thread.show(await call("GET", `/messages/${id}`));
    show();
  } catch (error) {
    if (!page.isGone) warn(`A long message could not be loaded. ${error.message}`);
  }
}

// --- what the composer tells ---

/** The first message has made this conversation. */
function began(conversation) {
  page.conversation = conversation.id;
  history.replaceState(null, "", `/c/${conversation.id}/`);
  document.querySelector(".new").removeAttribute("aria-current");
  ready.then(() => live.start(conversation.id));
}

/** The service has taken a message. The live view tells more, before this or after it. */
function took(turn) {
  if (page.isGone) return;
  if (!thread.find(turn.user.id)) thread.show({ ...turn.user, turn_id: turn.id });
  if (!thread.find(turn.assistant.id)) {
    const role = { role: "assistant", turn_id: turn.id, created_at: turn.created_at };
    if (isOpen(turn)) thread.turn = turn;
    thread.show({ ...turn.assistant, ...role, text: "" });
    if (!isOpen(turn)) live.again();
  }
  if (!page.turn || page.turn.id !== turn.id) thread.showTurn(turn);
  conversations.refresh();
  show();
}

function sent() {
  reading.toEnd();
  show();
}

function removed() {
  composer.forget();
  location.replace("/");
}

/** The conversation was removed elsewhere. What was said stays, to be read and copied. */
function gone() {
  page.isGone = true;
  document.body.classList.add("gone");
  withdrawn(page.conversation);
  reading.finish();
  composer.finish();
  for (const act of goers) act();
  lead("This conversation does not exist any more.", "/", "To your conversations");
  // what had the focus may have gone
  if (document.activeElement === document.body) notice.querySelector("a").focus();
  conversations.refresh();
  show();
}

function renamed(title) {
  if (!title) return;
  name = title;
  document.getElementById("title").textContent = title;
  mark(marked);
}

function mark(count) {
  marked = count;
  document.title = `${count ? `(${count}) ` : ""}${name} · Holdfast`;
}

function occupy(is) {
  isOccupied = is;
  show();
}

// --- what a person does in the thread ---

function act(what, message, button) {
  if (page.isGone && !what.startsWith("copy")) return;
  const { shown } = reading;
  switch (what) {
    case "copy":
      copy(shown.textOf(message), button);
      break;
    case "copy-code":
      copy(button.closest(".code").querySelector("pre").textContent, button);
      break;
    case "again": {
      const text = shown.questionOf(message.dataset.turn);
      if (text) {
        composer.post(text);
        composer.box.focus();
      }
      break;
    }
    case "about-again":
      again(message.dataset, button);
      break;
    case "correct":
      correct(message, shown, announce);
      break;
    case "remove":
      remove(message, shown, page);
      break;
    case "continue":
      composer.fill("Please go on where you were cut off.");
      break;
  }
}

/** Start again what a message is about, as soon as its panel is there. */
async function again({ about, aboutId }, button) {
  await ready;
  const start = agains.get(about);
  if (start) start(aboutId, button);
  else warn(MISSING);
}

for (const button of document.querySelectorAll("[data-suggest]")) {
  button.addEventListener("click", () => composer.fill(button.textContent));
}
document.getElementById("sign-out").addEventListener("submit", () => kept.forget());

// --- showing ---

function show() {
  const isEmpty = !thread.list.children.length && !document.querySelector("#pending > *");
  welcome.hidden = !isEmpty || isOccupied || reading.isAway || page.isGone;
  composer.draw();
  reading.draw();
}

function announce(text) {
  announcer.textContent = text;
}

function warn(text) {
  clearTimeout(warned);
  notice.replaceChildren(...(text ? [text] : standing));
  notice.hidden = !notice.hasChildNodes();
  if (text) warned = setTimeout(() => warn(""), 8000);
}

function connected(state) {
  connection.dataset.state = state;
  connection.querySelector("span").textContent = STATES[state];
  if (state === "live") {
    composer.flush();
    if (standing.length) {
      standing = [];
      warn("");
    }
  }
  if (state === "signed-out") {
    lead("You are signed out. What you wrote is kept in this browser.", TOLD.login, "Sign in");
  } else if (state === "gone") {
    gone();
  }
}

function lead(sentence, address, words) {
  const link = document.createElement("a");
  link.href = `${address}${address === "/" ? "" : `?next=${encodeURIComponent(location.pathname)}`}`;
  link.textContent = words;
  standing = [`${sentence} `, link];
  warn("");
}
