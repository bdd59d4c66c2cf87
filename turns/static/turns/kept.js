// What the browser keeps for one person: drafts, and messages nobody has taken yet.

export class Kept {
  constructor(user) {
    this.prefix = `holdfast.${user}.`;
    this.isOver = false;
  }

  /** Drafts survive the browser; what is being sent belongs to its tab. */
  draft(place) {
    return read(localStorage, `${this.prefix}draft.${place}`) ?? "";
  }

  keepDraft(place, text) {
    this.write(localStorage, `draft.${place}`, text || null);
  }

  unsent(place) {
    return read(sessionStorage, `${this.prefix}unsent.${place}`) ?? [];
  }

  keepUnsent(place, items) {
    this.write(sessionStorage, `unsent.${place}`, items.length ? items : null);
  }

  /** What a panel remembers: in this browser, or in this tab alone. */
  choice(name) {
    return read(localStorage, this.prefix + name);
  }

  keepChoice(name, value) {
    this.write(localStorage, name, value);
  }

  draftOf(name) {
    return read(sessionStorage, this.prefix + name);
  }

  keepDraftOf(name, value) {
    this.write(sessionStorage, name, value);
  }

  forgetPlace(place) {
    this.keepDraft(place, "");
    this.keepUnsent(place, []);
  }

  /** Nothing of this person stays behind for the next one. */
  forget() {
    this.isOver = true;
    for (const storage of [localStorage, sessionStorage]) {
      for (const key of Object.keys(storage)) {
        if (key.startsWith(this.prefix)) storage.removeItem(key);
      }
    }
  }

  write(storage, name, value) {
    if (this.isOver) return;
    try {
      if (value === null) storage.removeItem(this.prefix + name);
      else storage.setItem(this.prefix + name, JSON.stringify(value));
    } catch {
      // full or forbidden: then it lives as long as the page
    }
  }
}

function read(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}
