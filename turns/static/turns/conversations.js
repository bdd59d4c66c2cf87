// The list of conversations: more of it on scroll, names, removal, and the drawer on a phone.

import { call } from "./api.js";
import { confirmed } from "./confirm.js";
import { clone } from "./thread.js";

export class Conversations {
  /** `page` gives `conversation` and is told `renamed(title)`; `kept` forgets drafts. */
  constructor(page, kept) {
    this.page = page;
    this.kept = kept;
    this.list = document.getElementById("conversations");
    this.end = document.getElementById("list-end");
    this.next = this.list.dataset.next || null;
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-do]");
      const item = event.target.closest(".conversation");
      if (button?.dataset.do === "rename") this.rename(item);
      if (button?.dataset.do === "delete") this.ask(item);
    });
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.refresh();
    });
    this.watch = new IntersectionObserver((seen) => seen.at(-1).isIntersecting && this.more());
    this.watch.observe(this.end);
    this.label();
    this.list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  /** Read the beginning of the list again. */
  async refresh() {
    if (this.list.querySelector("input")) return; // a name is being written
    let page;
    try {
      page = await call("GET", `/conversations?limit=${this.limit}`);
    } catch {
      return; // the next reason to look comes soon
    }
    if (this.list.querySelector("input")) return; // it was begun meanwhile
    const focused = document.activeElement;
    this.list.replaceChildren(...page.conversations.map((one) => this.drawn(one)));
    if (focused?.isConnected && document.activeElement !== focused) focused.focus();
    this.next = page.next;
    this.label();
    this.page.listed();
  }

  /** How the list calls a conversation, null when it does not show it. */
  nameOf(id) {
    return this.find(id)?.querySelector(".conversation-name").textContent ?? null;
  }

  async more() {
    if (!this.next || this.isLoading) return;
    this.isLoading = true;
    this.end.textContent = "Loading …";
    try {
      const page = await call("GET", `/conversations?before=${encodeURIComponent(this.next)}`);
      for (const one of page.conversations) {
        if (!this.find(one.id)) this.list.append(this.drawn(one));
      }
      this.next = page.next;
      this.end.textContent = "";
      this.label();
      // The end may have come into view meanwhile and still be there: asked anew, it is told.
      this.watch.unobserve(this.end);
      this.watch.observe(this.end);
    } catch (error) {
      this.end.textContent = error.message;
    } finally {
      this.isLoading = false;
    }
  }

  /** As many as are shown, as far as one request goes. */
  get limit() {
    return Math.min(Math.max(this.list.children.length + 1, 50), 100);
  }

  find(id) {
    return this.list.querySelector(`:scope > [data-id="${CSS.escape(id)}"]`);
  }

  drawn(conversation) {
    const item = this.find(conversation.id) ?? clone("conversation");
    item.dataset.id = conversation.id;
    item.dataset.title = conversation.title;
    item.toggleAttribute("data-active", conversation.active);
    const link = item.querySelector("a");
    link.href = `/c/${conversation.id}/`;
    if (conversation.id === this.page.conversation) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    item.querySelector(".conversation-name").textContent =
      conversation.title || conversation.excerpt || "New conversation";
    return item;
  }

  label() {
    for (const item of this.list.children) {
      const name = item.querySelector(".conversation-name")?.textContent;
      item.querySelector("[data-do=rename]")?.setAttribute("aria-label", `Rename “${name}”`);
      item.querySelector("[data-do=delete]")?.setAttribute("aria-label", `Delete “${name}”`);
    }
  }

  // --- names ---

  rename(item) {
    if (this.list.querySelector("input")) return;
    const link = item.querySelector("a");
    const field = document.createElement("input");
    field.value = item.dataset.title || item.querySelector(".conversation-name").textContent;
    field.maxLength = 200;
    field.setAttribute("aria-label", "New name");
    let isOver = false;
    const finish = async (keep) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      field.replaceWith(link);
      link.focus();
      if (keep && title && title !== item.dataset.title) await this.keepName(item, title);
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => finish(true));
    link.replaceWith(field);
    field.focus();
    field.select();
  }

  async keepName(item, title) {
    const name = item.querySelector(".conversation-name");
    const before = name.textContent;
    name.textContent = title;
    try {
      await call("PATCH", `/conversations/${item.dataset.id}`, { title });
      item.dataset.title = title;
      if (item.dataset.id === this.page.conversation) this.page.renamed(title);
      this.label();
    } catch (error) {
      name.textContent = before;
      this.page.notice(`The name was not changed. ${error.message}`);
    }
  }

  // --- removal ---

  ask(item) {
    const name = item.querySelector(".conversation-name").textContent;
    const words = "It goes for good, with all its messages.";
    const about = item.dataset.id;
    confirmed("Delete this conversation?", name, words, () => this.remove(item), { about });
  }

  async remove(item) {
    const { id } = item.dataset;
    try {
      await call("DELETE", `/conversations/${id}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    if (id === this.page.conversation) {
      this.page.removed();
      return;
    }
    this.kept.forgetPlace(id);
    const beside = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    (beside?.querySelector("a") ?? document.querySelector(".new")).focus();
    this.page.announce("Deleted.");
  }
}

/** The list as a drawer, where there is no room beside the messages. */
export function startDrawer() {
  const drawer = document.getElementById("drawer");
  const shade = document.getElementById("shade");
  const opener = document.getElementById("open-drawer");
  const main = document.querySelector("main");
  const narrow = matchMedia("(max-width: 760px)");
  const set = (isOpen) => {
    drawer.classList.toggle("open", isOpen);
    shade.hidden = !isOpen;
    opener.setAttribute("aria-expanded", String(isOpen));
    drawer.inert = narrow.matches && !isOpen;
    main.inert = narrow.matches && isOpen;
  };
  const close = () => {
    set(false);
    opener.focus();
  };
  opener.addEventListener("click", () => {
    set(true);
    document.getElementById("close-drawer").focus();
  });
  document.getElementById("close-drawer").addEventListener("click", close);
  shade.addEventListener("click", close);
  drawer.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drawer.classList.contains("open")) close();
  });
  narrow.addEventListener("change", () => set(false));
  set(false);
}
