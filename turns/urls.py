"""The addresses of the page."""

from __future__ import annotations

from django.urls import path

from turns import views

urlpatterns = [
    path("", views.latest, name="latest"),
    path("new/", views.new, name="new"),
    path("c/<str:conversation_id>/", views.conversation, name="conversation"),
    path("c/<str:conversation_id>/messages/", views.page_of_messages, name="page_of_messages"),
    path("login/", views.sign_in, name="login"),
    path("logout/", views.sign_out, name="logout"),
]
