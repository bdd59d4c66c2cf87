// One's own words: corrected in place, or removed with the answer they were given.

import { call } from "./api.js";
import { confirmed } from "./confirm.js";
import { clone } from "./thread.js";

export function correct(message, thread, announce) {
  if (message.querySelector("form")) return;
  const words = message.querySelector(".words");
  const form = clone("correction");
  const box = form.querySelector("textarea");
  const problem = form.querySelector(".problem");
  const close = () => {
    form.replaceWith(words);
    message.classList.remove("corrected");
    message.querySelector("[data-do=correct]").focus();
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = box.value;
    if (text === thread.textOf(message)) return close();
    try {
      await call("PATCH", `/messages/${message.dataset.id}`, { text });
      close();
      thread.show(await call("GET", `/messages/${message.dataset.id}`));
      announce("Corrected.");
    } catch (error) {
      problem.textContent = error.message;
    }
  });
  form.querySelector("[data-do=keep]").addEventListener("click", close);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  box.value = thread.textOf(message);
  words.replaceWith(form);
  message.classList.add("corrected");
  box.style.height = `${box.scrollHeight + 2}px`;
  box.focus();
}

export function remove(message, thread, { announce, conversation }) {
  const name = thread.textOf(message).slice(0, 80);
  const words = "It goes for good, and its answer with it.";
  const doing = async () => {
    try {
      await call("DELETE", `/messages/${message.dataset.id}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    const beside = message.previousElementSibling;
    const answer = message.dataset.turn && thread.answerTo(message.dataset.turn);
    if (answer) thread.remove(answer);
    thread.remove(message);
    (beside ?? document.getElementById("words")).focus();
    announce("Deleted.");
  };
  confirmed("Delete this message?", name, words, doing, { about: conversation });
}
