// The WebSocket of one conversation: frames in, and whether they come.
//
// The cursor of the last applied frame is handed back at every reconnect, so that nothing is
// lost and nothing is shown twice.

const BACKOFF_SECONDS = [0.3, 0.7, 1.5, 3, 6, 12];
const SILENCE_SECONDS = 20;
const ANSWER_SECONDS = 8;
const FINAL = { 4401: "signed-out", 4404: "gone" };

export class Live {
  /** `onFrame(frame)` applies a frame; when it throws, a snapshot is asked for instead. */
  constructor({ onFrame, onState }) {
    this.onFrame = onFrame;
    this.onState = onState;
    this.conversation = null;
    this.cursor = "";
    this.failures = 0;
    addEventListener("online", () => this.now());
    addEventListener("offline", () => this.lost("offline"));
    addEventListener("pageshow", (event) => event.persisted && this.now());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.probe();
    });
  }

  start(conversation, cursor = "") {
    this.conversation = conversation;
    this.cursor = cursor;
    this.now();
  }

  /** Connect without waiting for the back-off. */
  now() {
    this.failures = 0;
    this.connect();
  }

  /** Forget what was shown: a snapshot comes next. */
  again() {
    this.cursor = "";
    this.connect();
  }

  /** Ask whether the other end is there; be answered soon or connect anew. */
  probe() {
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send('{"type":"ping"}');
      this.watch(ANSWER_SECONDS, () => this.now());
    } else if (this.retry) {
      this.now();
    }
  }

  connect() {
    if (this.conversation === null) return;
    this.drop();
    this.onState("connecting");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const after = this.cursor ? `?after=${encodeURIComponent(this.cursor)}` : "";
    const socket = new WebSocket(
      `${scheme}//${location.host}/ws/conversations/${this.conversation}/${after}`,
    );
    this.socket = socket;
    this.watch(ANSWER_SECONDS, () => this.lost("reconnecting"));
    socket.onopen = () => this.probe();
    socket.onmessage = ({ data }) => this.hear(JSON.parse(data));
    socket.onclose = ({ code }) => {
      if (FINAL[code]) {
        this.drop();
        // nothing brings it back, neither a network nor a look at the page
        if (FINAL[code] === "gone") this.conversation = null;
        this.onState(FINAL[code]);
      } else {
        this.lost(navigator.onLine ? "reconnecting" : "offline");
      }
    };
  }

  hear(frame) {
    this.failures = 0;
    this.onState("live");
    this.watch(SILENCE_SECONDS, () => this.probe());
    if (frame.type === "pong") return;
    if (this.onFrame(frame) === false) {
      this.again();
    } else {
      this.cursor = frame.type === "resync" ? "" : frame.cursor;
    }
  }

  lost(state) {
    if (this.conversation === null) return;
    this.drop();
    this.onState(state);
    const longest = BACKOFF_SECONDS[Math.min(this.failures, BACKOFF_SECONDS.length - 1)];
    this.failures += 1;
    // half of it by chance: a thousand pages do not come back in the same moment
    const seconds = longest * (0.5 + Math.random() / 2);
    this.retry = setTimeout(() => this.connect(), seconds * 1000);
  }

  drop() {
    clearTimeout(this.timer);
    clearTimeout(this.retry);
    this.retry = 0;
    if (this.socket) {
      this.socket.onopen = this.socket.onmessage = this.socket.onclose = null;
      this.socket.close();
      this.socket = null;
    }
  }

  watch(seconds, act) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, seconds * 1000);
  }
}
